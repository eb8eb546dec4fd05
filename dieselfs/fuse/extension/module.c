/* The door to Python: dieselfs/fuse/fast_path.py is its only user, dieselfs/fuse/_fast_path.pyi says what the calls mean. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "fast_path.h"

static PyObject *refuse(int error)
{
    errno = error;
    return PyErr_SetFromErrno(PyExc_OSError);
}

static PyObject *enable(PyObject *self, PyObject *unused)
{
    channel_enable();
    Py_RETURN_NONE;
}

static PyObject *captured(PyObject *self, PyObject *unused)
{
    return PyBool_FromLong(channel_captured());
}

/* --- snapshots ---------------------------------------------------------------------------------- */

typedef struct {
    const char *map;
    Py_ssize_t map_bytes;
    PyObject *sections;
    bool failed;
} Map;

/* The section's rows; `bytes_out` is NULL where the number of rows is fixed. */
static const void *section(Map *map, const char *name, uint64_t rows, size_t width, uint64_t *bytes_out)
{
    unsigned long long start = 0, bytes = 0;
    if (bytes_out)
        *bytes_out = 0;
    if (map->failed)
        return map->map;
    PyObject *extent = PyMapping_GetItemString(map->sections, name);
    if (!extent || !PyArg_ParseTuple(extent, "KK", &start, &bytes)) {
        map->failed = true;
    } else if (start % 8 || start > (uint64_t)map->map_bytes || bytes > map->map_bytes - start ||
               (!bytes_out && (bytes % width || bytes / width != rows))) { /* a product could wrap around */
        PyErr_Format(PyExc_ValueError, "section %s is out of bounds", name);
        map->failed = true;
    }
    Py_XDECREF(extent);
    if (bytes_out)
        *bytes_out = bytes;
    return map->map + start;
}

static Column column(Map *map, const char *name, uint64_t rows)
{
    uint64_t bytes;
    const void *place = section(map, name, 0, 0, &bytes);
    if (!map->failed && bytes != rows * 4 && bytes != rows * 8) {
        PyErr_Format(PyExc_ValueError, "section %s is out of bounds", name);
        map->failed = true;
    }
    return (Column){place, rows && bytes == rows * 8};
}

static bool map_epoch(Epoch *epoch, Map *map)
{
    uint64_t files = epoch->files, chunks = epoch->chunks, directories = epoch->directories;
    epoch->offset = column(map, "offset", files);
    epoch->name_at = column(map, "name_at", files);
    epoch->length = section(map, "length", files, 8, NULL);
    epoch->mtime_ns = section(map, "mtime_ns", files, 8, NULL);
    epoch->mode = section(map, "mode", files, 2, NULL);
    epoch->chunk = section(map, "chunk", files, 4, NULL);
    epoch->parent = section(map, "parent", files, 4, NULL);
    epoch->name_bytes = section(map, "name_bytes", files, 1, NULL);
    epoch->by_name = section(map, "by_name", files, 4, NULL);
    epoch->names = section(map, "names", 0, 0, &epoch->names_bytes);
    epoch->chunk_id = section(map, "chunk_id", chunks, 16, NULL);
    epoch->payload_bytes = section(map, "chunk_payload_bytes", chunks, 8, NULL);
    epoch->first_inode = section(map, "chunk_first_inode", chunks + 1, 4, NULL);
    epoch->path_at = section(map, "directory_path_at", directories + 1, 8, NULL);
    epoch->directory_mode = section(map, "directory_mode", directories, 2, NULL);
    epoch->directory_mtime_ns = section(map, "directory_mtime_ns", directories, 8, NULL);
    epoch->first_file = section(map, "directory_first_file", directories, 4, NULL);
    epoch->file_count = section(map, "directory_file_count", directories, 4, NULL);
    epoch->first_directory = section(map, "directory_first_directory", directories, 4, NULL);
    epoch->directory_count = section(map, "directory_directory_count", directories, 4, NULL);
    epoch->paths = section(map, "directory_paths", 0, 0, &epoch->paths_bytes);
    return !map->failed;
}

static PyObject *add_epoch(PyObject *self, PyObject *arguments)
{
    unsigned long long number, files, directories, chunks;
    PyObject *sections;
    Py_buffer view;
    if (!PyArg_ParseTuple(arguments, "Ky*(KKK)O", &number, &view, &files, &directories, &chunks, &sections))
        return NULL;
    Map map = {.map = view.buf, .map_bytes = view.len, .sections = sections};
    Epoch *epoch = NULL;
    if (number <= last_epoch || number >= MAX_EPOCHS)
        PyErr_Format(PyExc_ValueError, "epoch %llu can't follow %llu", number, (unsigned long long)last_epoch);
    else if (!(epoch = calloc(1, sizeof *epoch)))
        PyErr_NoMemory();
    else {
        epoch->number = number, epoch->files = files, epoch->directories = directories, epoch->chunks = chunks;
        if (map_epoch(epoch, &map) && chunks_of(epoch))
            PyErr_NoMemory();
    }
    if (PyErr_Occurred()) {
        free(epoch);
        PyBuffer_Release(&view);
        return NULL;
    }
    /* The view is kept: old inodes are served for as long as the process lives. */
    atomic_store(&epochs[number], epoch);
    last_epoch = number;
    residents_adopt(epoch);
    current_epoch = number;
    Py_RETURN_NONE;
}

/* --- chunks ------------------------------------------------------------------------------------- */

enum { ORDER, POSITION_OF, SENTINELS, PLAN_BUFFERS };

static void release_plan(Py_buffer *views)
{
    for (int i = 0; i < PLAN_BUFFERS; i++)
        if (views[i].obj)
            PyBuffer_Release(&views[i]);
    PyMem_Free(views);
}

/* Let go of what no thread uses any more. That needs the GIL, so it waits for the next call. */
static void let_go(void)
{
    for (Py_buffer *view; (view = resident_given_back());) {
        PyBuffer_Release(view);
        PyMem_Free(view);
    }
    for (Py_buffer *views; (views = plan_given_back());)
        release_plan(views);
}

static bool chunk_id(const Py_buffer *id)
{
    if (id->len == 16)
        return true;
    PyErr_SetString(PyExc_ValueError, "a chunk id has 16 bytes");
    return false;
}

static PyObject *hold(PyObject *self, PyObject *arguments)
{
    Py_buffer id, *payload = PyMem_Malloc(sizeof *payload);
    if (!payload)
        return PyErr_NoMemory();
    if (!PyArg_ParseTuple(arguments, "y*y*", &id, payload)) {
        PyMem_Free(payload);
        return NULL;
    }
    let_go();
    bool held = chunk_id(&id);
    if (held) {
        resident_release(id.buf); /* the same chunk, fetched again */
        held = resident_hold(id.buf, payload->buf, (uint64_t)payload->len, payload);
        if (!held)
            PyErr_NoMemory();
    }
    PyBuffer_Release(&id);
    if (held)
        Py_RETURN_NONE;
    PyBuffer_Release(payload);
    PyMem_Free(payload);
    return NULL;
}

static PyObject *release(PyObject *self, PyObject *arguments)
{
    Py_buffer id;
    if (!PyArg_ParseTuple(arguments, "y*", &id))
        return NULL;
    if (chunk_id(&id))
        resident_release(id.buf);
    PyBuffer_Release(&id);
    let_go();
    if (PyErr_Occurred())
        return NULL;
    Py_RETURN_NONE;
}

static PyObject *consumed(PyObject *self, PyObject *unused)
{
    let_go();
    PyObject *list = PyList_New(0);
    for (uint8_t id[16]; list && take_consumed(id);) {
        PyObject *bytes = PyBytes_FromStringAndSize((const char *)id, sizeof id);
        if (!bytes || PyList_Append(list, bytes))
            Py_CLEAR(list);
        Py_XDECREF(bytes);
    }
    return list;
}

/* --- the plan ----------------------------------------------------------------------------------- */

static bool is_column(const Py_buffer *view)
{
    return view->len % 4 == 0 && (uintptr_t)view->buf % 4 == 0 && view->len / 4 < UINT32_MAX;
}

static PyObject *set_plan(PyObject *self, PyObject *arguments)
{
    unsigned long long epoch;
    Py_buffer *views = PyMem_Calloc(PLAN_BUFFERS, sizeof *views);
    if (!views)
        return PyErr_NoMemory();
    if (!PyArg_ParseTuple(arguments, "Ky*y*y*", &epoch, &views[ORDER], &views[POSITION_OF], &views[SENTINELS])) {
        PyMem_Free(views);
        return NULL;
    }
    const char *fault = NULL;
    if (!is_column(&views[ORDER]) || !is_column(&views[POSITION_OF]))
        fault = "it is not made of 32-bit numbers";
    else {
        PlanColumns columns = {
            .order = views[ORDER].buf,
            .files = (uint32_t)(views[ORDER].len / 4),
            .position_of = views[POSITION_OF].buf,
            .position_count = (uint64_t)views[POSITION_OF].len / 4,
            .sentinels = views[SENTINELS].buf,
            .sentinel_bytes = (uint64_t)views[SENTINELS].len,
            .owner = views,
        };
        Py_BEGIN_ALLOW_THREADS
        fault = plan_set(epoch, &columns);
        Py_END_ALLOW_THREADS
    }
    let_go(); /* of the plan before */
    if (!fault)
        Py_RETURN_NONE;
    release_plan(views);
    return PyErr_Format(PyExc_ValueError, "this is no plan for epoch %llu: %s", epoch, fault);
}

static PyObject *clear_plan(PyObject *self, PyObject *unused)
{
    plan_clear();
    let_go();
    Py_RETURN_NONE;
}

static PyObject *store(PyObject *self, PyObject *arguments)
{
    Py_buffer id;
    if (!PyArg_ParseTuple(arguments, "y*", &id))
        return NULL;
    bool queued = chunk_id(&id) && store_by_plan(id.buf);
    PyBuffer_Release(&id);
    if (PyErr_Occurred())
        return NULL;
    return PyBool_FromLong(queued);
}

static PyObject *stored(PyObject *self, PyObject *unused)
{
    let_go();
    PyObject *list = PyList_New(0);
    bool went_well;
    for (uint8_t id[16]; list && take_stored(id, &went_well);) {
        PyObject *item = Py_BuildValue("(y#O)", (const char *)id, (Py_ssize_t)sizeof id, went_well ? Py_True : Py_False);
        if (!item || PyList_Append(list, item))
            Py_CLEAR(list);
        Py_XDECREF(item);
    }
    return list;
}

static PyObject *drop_residue(PyObject *self, PyObject *arguments)
{
    Py_buffer id;
    if (!PyArg_ParseTuple(arguments, "y*", &id))
        return NULL;
    if (chunk_id(&id))
        residue_drop(id.buf);
    PyBuffer_Release(&id);
    if (PyErr_Occurred())
        return NULL;
    Py_RETURN_NONE;
}

static PyObject *progress(PyObject *self, PyObject *unused)
{
    PlanProgress found = plan_progress();
    return Py_BuildValue("(IIK)", found.low, found.high, found.off_plan);
}

static PyObject *advance(PyObject *self, PyObject *arguments)
{
    unsigned int low;
    if (!PyArg_ParseTuple(arguments, "I", &low))
        return NULL;
    if (plan_advance(low))
        Py_RETURN_NONE;
    PyErr_SetString(PyExc_ValueError, "there is no plan, or it ends before that");
    return NULL;
}

static PyObject *plan_fd(PyObject *self, PyObject *unused)
{
    int fd = plan_watch();
    return fd < 0 ? refuse(errno) : PyLong_FromLong(fd);
}

/* --- listings ----------------------------------------------------------------------------------- */

static PyObject *listings_fd(PyObject *self, PyObject *unused)
{
    int fd = listings_watch();
    return fd < 0 ? refuse(errno) : PyLong_FromLong(fd);
}

static PyObject *begun_listings(PyObject *self, PyObject *unused)
{
    uint64_t inodes[MAX_BEGUN];
    size_t count = take_listings(inodes);
    PyObject *list = PyList_New(0);
    for (size_t i = 0; list && i < count; i++) {
        PyObject *inode = PyLong_FromUnsignedLongLong(inodes[i]);
        if (!inode || PyList_Append(list, inode))
            Py_CLEAR(list);
        Py_XDECREF(inode);
    }
    return list;
}

static PyObject *ignore_pid(PyObject *self, PyObject *arguments)
{
    unsigned int pid;
    if (!PyArg_ParseTuple(arguments, "I", &pid))
        return NULL;
    listings_ignore(pid);
    Py_RETURN_NONE;
}

/* --- threads ------------------------------------------------------------------------------------ */

static PyObject *start(PyObject *self, PyObject *arguments)
{
    int threads, storing_threads;
    unsigned int uid, gid;
    unsigned long long timeout_s, max_file_bytes, budget_bytes;
    if (!PyArg_ParseTuple(arguments, "iiIIKKK", &threads, &storing_threads, &uid, &gid, &timeout_s, &max_file_bytes, &budget_bytes))
        return NULL;
    mount_view = (MountView){uid, gid, timeout_s};
    storing_set_budget(budget_bytes);
    int error = storing_start(storing_threads, max_file_bytes);
    if (!error)
        error = channel_start(threads);
    if (error)
        return refuse(error);
    Py_RETURN_NONE;
}

static PyObject *stop(PyObject *self, PyObject *arguments)
{
    double timeout_s = 2;
    bool stopped;
    if (!PyArg_ParseTuple(arguments, "|d", &timeout_s))
        return NULL;
    if (!(timeout_s >= 0 && timeout_s <= 3600)) {
        PyErr_SetString(PyExc_ValueError, "a time-out has 0 to 3600 s");
        return NULL;
    }
    Py_BEGIN_ALLOW_THREADS
    stopped = storing_stop(timeout_s);
    if (stopped)
        channel_stop();
    Py_END_ALLOW_THREADS
    let_go();
    return PyBool_FromLong(stopped);
}

static PyObject *set_budget(PyObject *self, PyObject *arguments)
{
    unsigned long long bytes;
    if (!PyArg_ParseTuple(arguments, "K", &bytes))
        return NULL;
    storing_set_budget(bytes);
    Py_RETURN_NONE;
}

static PyObject *statistics(PyObject *self, PyObject *unused)
{
    StoringStatistics storing;
    storing_statistics(&storing);
    PyObject *requests = PyDict_New();
    for (int opcode = 0; requests && opcode < OPCODES; opcode++) {
        uint64_t count = answered[opcode];
        PyObject *key = count ? PyLong_FromLong(opcode) : NULL, *value = count ? PyLong_FromUnsignedLongLong(count) : NULL;
        if (count && (!key || !value || PyDict_SetItem(requests, key, value)))
            Py_CLEAR(requests);
        Py_XDECREF(key);
        Py_XDECREF(value);
    }
    if (!requests)
        return NULL;
    return Py_BuildValue(
        "{sN sK sK sK sK sK sK sK sK sK sK sK sK sK sK}", "requests", requests, "reads_answered",
        reads_answered, "bytes_answered", bytes_answered, "stored_files", storing.files, "stored_bytes", storing.bytes,
        "stored_chunks", storing.chunks, "unknown_inodes", storing.unknown_inodes, "failed", storing.failed,
        "outstanding_bytes", storing.outstanding_bytes, "budget_bytes", storing.budget_bytes, "consumed_chunks",
        storing.consumed_chunks, "read_without_request", storing.read_without_request, "plan_files_stored",
        storing.plan_files_stored, "reads_of_stored", storing.reads_of_stored, "residue_bytes", storing.residue_bytes);
}

static PyMethodDef methods[] = {
    {"enable", enable, METH_NOARGS, NULL},
    {"captured", captured, METH_NOARGS, NULL},
    {"add_epoch", add_epoch, METH_VARARGS, NULL},
    {"hold", hold, METH_VARARGS, NULL},
    {"release", release, METH_VARARGS, NULL},
    {"consumed", consumed, METH_NOARGS, NULL},
    {"set_plan", set_plan, METH_VARARGS, NULL},
    {"clear_plan", clear_plan, METH_NOARGS, NULL},
    {"store", store, METH_VARARGS, NULL},
    {"stored", stored, METH_NOARGS, NULL},
    {"drop_residue", drop_residue, METH_VARARGS, NULL},
    {"plan_progress", progress, METH_NOARGS, NULL},
    {"advance", advance, METH_VARARGS, NULL},
    {"plan_fd", plan_fd, METH_NOARGS, NULL},
    {"listings_fd", listings_fd, METH_NOARGS, NULL},
    {"begun_listings", begun_listings, METH_NOARGS, NULL},
    {"ignore_pid", ignore_pid, METH_VARARGS, NULL},
    {"start", start, METH_VARARGS, NULL},
    {"stop", stop, METH_VARARGS, NULL},
    {"set_budget", set_budget, METH_VARARGS, NULL},
    {"statistics", statistics, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, .m_name = "_fast_path", .m_size = -1, .m_methods = methods};

PyMODINIT_FUNC PyInit__fast_path(void)
{
    return PyModule_Create(&definition);
}
