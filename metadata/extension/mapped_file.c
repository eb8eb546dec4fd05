/* A file that is read through a memory map: whether it was changed since, and what a reader gets for
 * pages that are gone.
 *
 * A page beyond the end of a truncated file, or one that the disk does not give, is SIGBUS. The
 * handler replaces the whole map by zeros and marks it as lost, so the reader goes on, and learns of
 * it from `is_unchanged`. A signal that meets any other address is passed on to the handler that was
 * there before. Maps are found in a table of fixed size, since a handler may take no lock. The calls
 * are documented in metadata/_mapped_file.pyi.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define MOST_MAPS 4096 /* further ones are not guarded: SIGBUS ends their process */

typedef struct {
    uintptr_t start, end; /* whole pages; `end` is written last, and 0 while the place is free */
    int is_lost;
} Map;

static Map maps[MOST_MAPS];
static struct sigaction before;
static bool is_installed;

static void pass_on(int signal_number, siginfo_t *information, void *context)
{
    if (before.sa_flags & SA_SIGINFO)
        before.sa_sigaction(signal_number, information, context);
    else
        sigaction(signal_number, &before, NULL); /* the instruction is executed again, and meets it */
}

static void on_signal(int signal_number, siginfo_t *information, void *context)
{
    uintptr_t at = (uintptr_t)information->si_addr;
    for (int i = 0; information->si_code > 0 && i < MOST_MAPS; i++) {
        uintptr_t end = __atomic_load_n(&maps[i].end, __ATOMIC_ACQUIRE), start = maps[i].start;
        if (at < start || at >= end)
            continue;
        __atomic_store_n(&maps[i].is_lost, 1, __ATOMIC_RELEASE);
        int kept = errno;
        if (mmap((void *)start, end - start, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) != MAP_FAILED) {
            errno = kept;
            return;
        }
    }
    pass_on(signal_number, information, context);
}

typedef struct {
    PyObject_HEAD
    Py_buffer content; /* keeps the map alive */
    Map *map;          /* NULL if the table is full */
    int descriptor;
    bool is_refused;
    struct stat known;
    struct timespec checked; /* the tick of the clock in which the file was found unchanged */
} MappedFile;

static void deallocate(MappedFile *self)
{
    PyTypeObject *type = Py_TYPE((PyObject *)self);
    if (self->map)
        __atomic_store_n(&self->map->end, 0, __ATOMIC_RELEASE);
    if (self->content.obj)
        PyBuffer_Release(&self->content);
    if (self->descriptor >= 0)
        close(self->descriptor);
    PyObject_Free(self);
    Py_DECREF(type);
}

static void guard(MappedFile *self)
{
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), start = (uintptr_t)self->content.buf;
    for (int i = 0; i < MOST_MAPS; i++)
        if (!maps[i].end) { /* under the GIL nobody else takes the place */
            self->map = &maps[i];
            maps[i].start = start;
            maps[i].is_lost = 0;
            __atomic_store_n(&maps[i].end, (start + (uintptr_t)self->content.len + page - 1) & ~(page - 1), __ATOMIC_RELEASE);
            return;
        }
}

static void install(void)
{
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_sigaction = on_signal;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    sigemptyset(&action.sa_mask);
    if (!is_installed)
        is_installed = !sigaction(SIGBUS, &action, &before);
}

static PyObject *make(PyTypeObject *type, PyObject *arguments, PyObject *keywords)
{
    PyObject *content;
    int descriptor;
    if (!PyArg_ParseTuple(arguments, "Oi", &content, &descriptor))
        return NULL;
    MappedFile *self = (MappedFile *)PyType_GenericAlloc(type, 0);
    if (!self)
        return NULL;
    self->descriptor = fcntl(descriptor, F_DUPFD_CLOEXEC, 0);
    if (self->descriptor < 0 || fstat(self->descriptor, &self->known)) {
        PyErr_SetFromErrno(PyExc_OSError);
    } else if (!PyObject_GetBuffer(content, &self->content, PyBUF_SIMPLE)) {
        install();
        guard(self);
        return (PyObject *)self;
    }
    Py_DECREF(self);
    return NULL;
}

static bool is_lost(const MappedFile *self)
{
    return self->map && __atomic_load_n(&self->map->is_lost, __ATOMIC_ACQUIRE);
}

static bool are_equal(struct timespec a, struct timespec b)
{
    return a.tv_sec == b.tv_sec && a.tv_nsec == b.tv_nsec;
}

static bool is_as_known(const MappedFile *self)
{
    struct stat now;
    const struct stat *known = &self->known;
    return !fstat(self->descriptor, &now) && now.st_size == known->st_size && are_equal(now.st_mtim, known->st_mtim) &&
           are_equal(now.st_ctim, known->st_ctim);
}

/* The file is asked once in a tick of the coarse clock, from which its times come as well. */
static PyObject *is_unchanged(MappedFile *self, PyObject *unused)
{
    struct timespec tick;
    if (self->is_refused || is_lost(self))
        Py_RETURN_FALSE;
    if (clock_gettime(CLOCK_MONOTONIC_COARSE, &tick) || !are_equal(tick, self->checked)) {
        if (!is_as_known(self))
            Py_RETURN_FALSE;
        self->checked = tick;
    }
    Py_RETURN_TRUE;
}

static PyObject *renew(MappedFile *self, PyObject *unused)
{
    self->checked = (struct timespec){0};
    if (fstat(self->descriptor, &self->known))
        return PyErr_SetFromErrno(PyExc_OSError);
    return PyBool_FromLong(!is_lost(self) && self->known.st_size == self->content.len);
}

static PyObject *refuse(MappedFile *self, PyObject *unused)
{
    self->is_refused = true;
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"is_unchanged", (PyCFunction)is_unchanged, METH_NOARGS, NULL},
    {"renew", (PyCFunction)renew, METH_NOARGS, NULL},
    {"refuse", (PyCFunction)refuse, METH_NOARGS, NULL},
    {0},
};

static PyType_Slot slots[] = {
    {Py_tp_new, make},
    {Py_tp_dealloc, deallocate},
    {Py_tp_methods, methods},
    {0, NULL},
};

static PyType_Spec specification = {
    .name = "metadata._mapped_file.MappedFile",
    .basicsize = sizeof(MappedFile),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = slots,
};

static int fill(PyObject *module)
{
    PyObject *type = PyType_FromSpec(&specification);
    int failed = !type || PyModule_AddObjectRef(module, "MappedFile", type);
    Py_XDECREF(type);
    return failed ? -1 : 0;
}

static PyModuleDef_Slot module_slots[] = {{Py_mod_exec, fill}, {0, NULL}};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT,
    .m_name = "_mapped_file",
    .m_slots = module_slots,
};

PyMODINIT_FUNC PyInit__mapped_file(void)
{
    return PyModuleDef_Init(&module);
}
