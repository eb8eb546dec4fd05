/* The end of a process that dies inside a library: a line that says what to do, a mark in a file,
 * and an exit code, in place of a core file and a bare "Aborted".
 *
 * LMDB trusts the pages of its file. A damaged one ends the process by SIGABRT (its assertions),
 * SIGBUS or SIGSEGV (an address outside the map). A thread says around its calls of LMDB what is to
 * be told if such a signal meets it there; a signal that meets it anywhere else is passed on to the
 * handler that was there before. The handler calls only what may be called in one: open, write,
 * sigaction, raise, _exit. The calls are documented in metadata/_crash_report.pyi.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <string.h>
#include <unistd.h>

static const int signals[] = {SIGABRT, SIGBUS, SIGSEGV};
enum { SIGNALS = sizeof signals / sizeof *signals };

static struct sigaction before[SIGNALS];
static bool is_installed;
static int exit_code;

/* What this thread has to tell; no lazy allocation, which a handler could not make. */
static __thread __attribute__((tls_model("initial-exec"))) struct {
    PyObject *message, *mark; /* bytes, held */
    const char *line, *path;
    size_t line_bytes;
} report;

static void pass_on(int signal_number, siginfo_t *information, void *context)
{
    for (int i = 0; i < SIGNALS; i++) {
        if (signals[i] != signal_number)
            continue;
        if (signal_number == SIGBUS && before[i].sa_flags & SA_SIGINFO) {
            before[i].sa_sigaction(signal_number, information, context); /* of mapped_file.c: may mend it */
            return;
        }
        sigaction(signal_number, &before[i], NULL);
    }
    if (signal_number == SIGABRT) /* abort() would skip the former handler; it waits for our return */
        raise(signal_number);
    /* The instruction that failed is executed again, and meets the former handler. */
}

static void on_signal(int signal_number, siginfo_t *information, void *context)
{
    if (!report.line) {
        pass_on(signal_number, information, context);
        return;
    }
    int mark = open(report.path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    if (mark >= 0)
        close(mark);
    if (write(STDERR_FILENO, report.line, report.line_bytes) < 0) {
        /* nobody reads it */
    }
    _exit(exit_code);
}

static PyObject *install(PyObject *module, PyObject *argument)
{
    long code = PyLong_AsLong(argument);
    if (code == -1 && PyErr_Occurred())
        return NULL;
    exit_code = (int)code;
    if (!is_installed) {
        struct sigaction action;
        memset(&action, 0, sizeof action);
        action.sa_sigaction = on_signal;
        action.sa_flags = SA_SIGINFO | SA_ONSTACK;
        sigemptyset(&action.sa_mask);
        for (int i = 0; i < SIGNALS; i++)
            sigaction(signals[i], &action, &before[i]);
        is_installed = true;
    }
    Py_RETURN_NONE;
}

static PyObject *leave(PyObject *module, PyObject *unused)
{
    PyObject *message = report.message, *mark = report.mark;
    memset(&report, 0, sizeof report);
    Py_XDECREF(message);
    Py_XDECREF(mark);
    Py_RETURN_NONE;
}

static PyObject *enter(PyObject *module, PyObject *arguments)
{
    PyObject *message, *mark;
    if (!PyArg_ParseTuple(arguments, "SS", &message, &mark))
        return NULL;
    Py_INCREF(message);
    Py_INCREF(mark);
    Py_XDECREF(leave(module, NULL));
    report.message = message;
    report.mark = mark;
    report.path = PyBytes_AsString(mark);
    report.line_bytes = (size_t)PyBytes_Size(message);
    report.line = PyBytes_AsString(message);
    Py_RETURN_NONE;
}

static PyMethodDef functions[] = {
    {"install", install, METH_O, NULL},
    {"enter", enter, METH_VARARGS, NULL},
    {"leave", leave, METH_NOARGS, NULL},
    {0},
};

static PyModuleDef_Slot module_slots[] = {{0, NULL}};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT,
    .m_name = "_crash_report",
    .m_methods = functions,
    .m_slots = module_slots,
};

PyMODINIT_FUNC PyInit__crash_report(void)
{
    return PyModuleDef_Init(&module);
}
