/* The look-up from a path to its file, in the memory map of a snapshot: the same as in
 * metadata/path_lookup.py, without Python between two waits for memory. The calls are documented in
 * metadata/_path_lookup.pyi, the sections in docs/snapshot-format.md.
 *
 * Numbers that come from the map are checked where they are used as an index: a damaged file finds
 * nothing, never another path. All of it runs under the GIL, and nothing is written but results.
 *
 * With Py_LIMITED_API (setup.py) it keeps to the stable ABI of Python 3.11, so that one wheel serves
 * every later Python. The build for one Python calls less: a look-up takes 230 ns, and 270 with the
 * stable ABI (100,000 files).
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#ifdef Py_LIMITED_API
#define PyObject_CallOneArg(callable, argument) PyObject_CallFunctionObjArgs(callable, argument, NULL)
#define PyBytes_AS_STRING PyBytes_AsString
#define PyBytes_GET_SIZE PyBytes_Size
#define PyTuple_GET_ITEM PyTuple_GetItem
#define PyList_SET_ITEM PyList_SetItem
#endif

#define LINE_BYTES 64
/* The paths whose memory is requested together: several times the requests that a core has in
 * flight, and a page of stack. */
#define AT_ONCE 64
/* The longest path of a directory, with its slash (chunkstore/paths.py). */
#define MAX_DIRECTORY_BYTES 4096

enum { FILE_INDEX, PARENT, NAME_AT, NAME_BYTES, NAMES, DIRECTORY_PATH_AT, DIRECTORY_PATHS, CHUNK, OFFSET, LENGTH, SECTIONS };

/* The bytes that a number of each section may have, all powers of two, as a set of bits. */
static const unsigned int widths[SECTIONS] = {4, 4, 4 | 8, 1, 1, 8, 1, 4, 4 | 8, 8};

typedef struct {
    PyObject_HEAD
    PyObject *digest;             /* xxhash.xxh3_64_intdigest */
    Py_buffer sections[SECTIONS]; /* they keep the map alive */
    const uint32_t *index;
    uint64_t index_entries, slots, reach;
    uint64_t files;
    const uint32_t *parent;
    const void *name_at;
    bool wide_name_at;
    const uint8_t *name_bytes;
    const char *names;
    uint64_t names_bytes;
    uint64_t directories;
    const uint64_t *path_at;
    const char *paths;
    uint64_t paths_bytes;
} FileLookup;

static uint64_t name_at(const FileLookup *self, uint64_t inode)
{
    return self->wide_name_at ? ((const uint64_t *)self->name_at)[inode] : ((const uint32_t *)self->name_at)[inode];
}

/* --- one path ----------------------------------------------------------------------------------- */

/* Return a path's bytes, a new reference; for a str its UTF-8. */
static PyObject *encode(PyObject *path)
{
    if (PyUnicode_Check(path))
        return PyUnicode_AsEncodedString(path, "utf-8", "surrogateescape");
    if (PyBytes_Check(path))
        return Py_NewRef(path);
    return PyErr_Format(PyExc_TypeError, "a path is str or bytes, not %R", Py_TYPE(path));
}

/* Find the first slot of an encoded path (metadata/path_index.py). Return false with an error
 * set. */
static bool find_home(const FileLookup *self, PyObject *path, uint64_t *home)
{
    PyObject *digest = PyObject_CallOneArg(self->digest, path);
    if (!digest)
        return false;
    uint64_t hash = PyLong_AsUnsignedLongLong(digest);
    Py_DECREF(digest);
    *home = (hash >> 32) * self->slots >> 32;
    return !PyErr_Occurred();
}

/* The two places that a file's path consists of: its directory's, with the final slash, and its name. */
typedef struct {
    const char *directory, *name;
    uint64_t directory_bytes, name_bytes;
} Path;

/* Find a file's path. Return false if the columns are damaged. */
static bool find_path(const FileLookup *self, uint64_t inode, Path *path)
{
    uint64_t directory = self->parent[inode], name = name_at(self, inode), name_bytes = self->name_bytes[inode];
    if (directory >= self->directories || name > self->names_bytes || name_bytes > self->names_bytes - name)
        return false;
    uint64_t above = self->path_at[directory], end = self->path_at[directory + 1];
    if (above > end || end > self->paths_bytes)
        return false;
    *path = (Path){self->paths + above, self->names + name, end - above, name_bytes};
    return true;
}

static bool has_path(const FileLookup *self, uint64_t inode, PyObject *path)
{
    const char *bytes = PyBytes_AS_STRING(path);
    Path found;
    return find_path(self, inode, &found) && found.directory_bytes + found.name_bytes == (uint64_t)PyBytes_GET_SIZE(path) &&
           !memcmp(bytes + found.directory_bytes, found.name, found.name_bytes) &&
           !memcmp(bytes, found.directory, found.directory_bytes);
}

/* Prefetch the extent of a file: its opener asks for it next, one Python instruction after the
 * other, and that takes 0.2 µs less. */
static void prefetch_extent(const FileLookup *self, uint64_t inode)
{
    for (int i = CHUNK; i <= LENGTH; i++)
        __builtin_prefetch((const char *)self->sections[i].buf + inode * self->sections[i].itemsize);
}

/* Return the inode or None, a new reference. */
static PyObject *find(const FileLookup *self, uint64_t home, PyObject *path)
{
    uint64_t end = home + self->reach < self->index_entries ? home + self->reach : self->index_entries;
    for (uint64_t at = home; at < end && self->index[at]; at++) {
        uint64_t inode = self->index[at] - 1;
        if (inode >= self->files)
            continue;
        prefetch_extent(self, inode);
        if (has_path(self, inode, path))
            return PyLong_FromUnsignedLongLong(inode);
    }
    Py_RETURN_NONE;
}

static PyObject *file(FileLookup *self, PyObject *argument)
{
    uint64_t home;
    PyObject *path = encode(argument);
    PyObject *found = path && find_home(self, path, &home) ? find(self, home, path) : NULL;
    Py_XDECREF(path);
    return found;
}

static PyObject *is_path_of(FileLookup *self, PyObject *const *arguments, Py_ssize_t count)
{
    if (count != 2) {
        PyErr_SetString(PyExc_TypeError, "is_path_of takes an inode and a path");
        return NULL;
    }
    long long inode = PyLong_AsLongLong(arguments[0]);
    if (PyErr_Occurred())
        return NULL;
    if (inode >= 0 && (uint64_t)inode >= self->files)
        return PyErr_Format(PyExc_IndexError, "inode %lld is not a file of this snapshot", inode);
    PyObject *path = encode(arguments[1]);
    PyObject *found = path ? PyBool_FromLong(inode >= 0 && has_path(self, inode, path)) : NULL;
    Py_XDECREF(path);
    return found;
}

/* --- many paths --------------------------------------------------------------------------------- */

/* Prefetch the memory for all paths, one step of `find` after the other, before any wait. */
static void prefetch(const FileLookup *self, const uint64_t *home, Py_ssize_t count)
{
    uint64_t inodes[2 * AT_ONCE], directories[2 * AT_ONCE];
    size_t candidates = 0;
    for (Py_ssize_t i = 0; i < count; i++)
        for (uint64_t at = home[i]; at < home[i] + 2 && at < self->index_entries && self->index[at]; at++) {
            uint64_t inode = self->index[at] - 1; /* 9 in 10 paths are at one of these two */
            if (inode >= self->files)
                continue;
            __builtin_prefetch(self->parent + inode);
            __builtin_prefetch((const char *)self->name_at + inode * (self->wide_name_at ? 8 : 4));
            __builtin_prefetch(self->name_bytes + inode);
            inodes[candidates++] = inode;
        }
    for (size_t i = 0; i < candidates; i++) {
        uint64_t name = name_at(self, inodes[i]), directory = self->parent[inodes[i]];
        directories[i] = directory < self->directories ? directory : 0;
        __builtin_prefetch(self->path_at + directories[i]);
        if (name < self->names_bytes)
            __builtin_prefetch(self->names + name);
    }
    for (size_t i = 0; i < candidates; i++) {
        uint64_t above = self->path_at[directories[i]];
        if (above < self->paths_bytes)
            __builtin_prefetch(self->paths + above);
    }
}

/* Find at most AT_ONCE paths of a tuple, from `first` on, and fill `found` there. Return false with
 * an error set. */
static bool find_block(const FileLookup *self, PyObject *tuple, Py_ssize_t count, PyObject *found, Py_ssize_t first)
{
    PyObject *paths[AT_ONCE], *encoded[AT_ONCE];
    uint64_t home[AT_ONCE];
    Py_ssize_t known = 0;
    for (Py_ssize_t i = 0; i < count; i++) {
        paths[i] = PyTuple_GET_ITEM(tuple, first + i);
        __builtin_prefetch(paths[i]);
        __builtin_prefetch((const void *)((uintptr_t)paths[i] + LINE_BYTES)); /* perhaps behind its end */
    }
    for (; known < count && (encoded[known] = encode(paths[known])); known++) {
        if (!find_home(self, encoded[known], &home[known])) {
            Py_DECREF(encoded[known]);
            break;
        }
        if (home[known] < self->index_entries)
            __builtin_prefetch(self->index + home[known]);
    }
    bool complete = known == count;
    if (complete)
        prefetch(self, home, count);
    for (Py_ssize_t i = 0; i < known; i++) {
        PyObject *inode = complete ? find(self, home[i], encoded[i]) : NULL;
        Py_DECREF(encoded[i]);
        complete = inode;
        if (inode)
            PyList_SET_ITEM(found, first + i, inode);
    }
    return complete;
}

static PyObject *files(FileLookup *self, PyObject *sequence)
{
    /* A tuple cannot change while `digest`, a Python function, runs. */
    PyObject *paths = PySequence_Tuple(sequence);
    if (!paths)
        return NULL;
    Py_ssize_t count = PyTuple_Size(paths);
    PyObject *found = PyList_New(count);
    if (found)
        PyObject_GC_UnTrack(found); /* or `digest` could see a list with places that are NULL */
    for (Py_ssize_t first = 0; found && first < count; first += AT_ONCE)
        if (!find_block(self, paths, count - first < AT_ONCE ? count - first : AT_ONCE, found, first))
            Py_CLEAR(found);
    if (found)
        PyObject_GC_Track(found);
    Py_DECREF(paths);
    return found;
}

/* --- the paths of many files -------------------------------------------------------------------- */

/* Sum up the bytes of paths with their final NULs, and prefetch the text. Return -1 if the columns are
 * damaged, or with an error set for an inode that is no file's. */
static int64_t text_bytes(const FileLookup *self, const int64_t *inodes, Py_ssize_t count)
{
    int64_t bytes = 0;
    Path path;
    for (Py_ssize_t i = 0; i < count; i++) {
        if (inodes[i] < 0 || (uint64_t)inodes[i] >= self->files) {
            PyErr_SetString(PyExc_IndexError, "cannot list the path of an inode that is not a file's");
            return -1;
        }
        if (!find_path(self, inodes[i], &path) || path.directory_bytes > MAX_DIRECTORY_BYTES)
            return -1;
        __builtin_prefetch(path.directory);
        __builtin_prefetch(path.name);
        bytes += path.directory_bytes + path.name_bytes + 1;
    }
    return bytes;
}

/* Copy the paths with their final NULs. Return false if one has no NUL at its end alone, or if the
 * columns have changed since `text_bytes`. */
static bool copy_paths(const FileLookup *self, const int64_t *inodes, Py_ssize_t count, char *to, const char *end)
{
    const char *names_end = self->names + self->names_bytes;
    Path path;
    for (Py_ssize_t i = 0; i < count; i++) {
        if (!find_path(self, inodes[i], &path) || path.name + path.name_bytes >= names_end ||
            path.directory_bytes + path.name_bytes >= (uint64_t)(end - to))
            return false;
        char *last = to + path.directory_bytes + path.name_bytes;
        memcpy(to, path.directory, path.directory_bytes);
        memcpy(to + path.directory_bytes, path.name, path.name_bytes + 1);
        if (memchr(to, 0, last + 1 - to) != last)
            return false;
        to = last + 1;
    }
    return to == end;
}

static PyObject *text(FileLookup *self, PyObject *argument)
{
    Py_buffer inodes;
    if (PyObject_GetBuffer(argument, &inodes, PyBUF_C_CONTIGUOUS | PyBUF_FORMAT))
        return NULL;
    PyObject *found = NULL;
    Py_ssize_t count = inodes.len / (Py_ssize_t)sizeof(int64_t);
    if (inodes.itemsize != sizeof(int64_t) || !inodes.format || !strchr("lq", *inodes.format) || (uintptr_t)inodes.buf % sizeof(int64_t)) {
        PyErr_SetString(PyExc_ValueError, "the inodes are not an array of signed numbers of 8 bytes");
    } else {
        int64_t bytes = text_bytes(self, inodes.buf, count);
        if (bytes >= 0)
            found = PyBytes_FromStringAndSize(NULL, bytes);
        if (found && !copy_paths(self, inodes.buf, count, PyBytes_AS_STRING(found), PyBytes_AS_STRING(found) + bytes))
            Py_CLEAR(found);
        if (!found && !PyErr_Occurred())
            found = Py_NewRef(Py_None);
    }
    PyBuffer_Release(&inodes);
    return found;
}

/* --- the type ----------------------------------------------------------------------------------- */

static void deallocate(FileLookup *self)
{
    PyTypeObject *type = Py_TYPE((PyObject *)self);
    for (int i = 0; i < SECTIONS; i++)
        if (self->sections[i].obj)
            PyBuffer_Release(&self->sections[i]);
    Py_XDECREF(self->digest);
    PyObject_Free(self);
    Py_DECREF(type);
}

/* Get a section's buffer. Return false with an error set. */
static bool take_section(FileLookup *self, int number, PyObject *object)
{
    Py_buffer *section = &self->sections[number];
    if (PyObject_GetBuffer(object, section, PyBUF_C_CONTIGUOUS | PyBUF_FORMAT))
        return false;
    const char *format = section->format;
    bool are_numbers = !format || (*format && strchr("BHILQ", *format) && !format[1]);
    if (!section->len || (are_numbers && section->itemsize & widths[number] && !((uintptr_t)section->buf % section->itemsize)))
        return true;
    PyErr_Format(PyExc_ValueError, "section %d is not an aligned array of unsigned numbers of its width", number);
    return false;
}

static uint64_t rows(const FileLookup *self, int number)
{
    const Py_buffer *section = &self->sections[number];
    return section->len ? section->len / section->itemsize : 0; /* an empty array may have any type */
}

/* Return a heap of bytes: never NULL, which an empty one may be and memcmp must not get. */
static const char *heap(const FileLookup *self, int number)
{
    return self->sections[number].len ? self->sections[number].buf : "";
}

/* Return false if the sections' lengths do not fit each other. */
static bool use_sections(FileLookup *self)
{
    self->index = self->sections[FILE_INDEX].buf, self->index_entries = rows(self, FILE_INDEX);
    self->parent = self->sections[PARENT].buf, self->files = rows(self, PARENT);
    self->slots = self->files ? 2 * self->files : 1; /* metadata/path_index.py; below 2^32 */
    self->name_at = self->sections[NAME_AT].buf, self->wide_name_at = self->sections[NAME_AT].itemsize == 8;
    self->name_bytes = self->sections[NAME_BYTES].buf;
    self->names = heap(self, NAMES), self->names_bytes = rows(self, NAMES);
    self->path_at = self->sections[DIRECTORY_PATH_AT].buf;
    self->paths = heap(self, DIRECTORY_PATHS), self->paths_bytes = rows(self, DIRECTORY_PATHS);
    uint64_t positions = rows(self, DIRECTORY_PATH_AT);
    self->directories = positions - 1;
    bool fit = self->files <= INT32_MAX && positions >= 2;
    for (int i = 0; i < SECTIONS; i++)
        if (i == NAME_AT || i == NAME_BYTES || i >= CHUNK)
            fit = fit && rows(self, i) == self->files;
    return fit;
}

static PyObject *make(PyTypeObject *type, PyObject *arguments, PyObject *keywords)
{
    if (PyTuple_Size(arguments) != 2 + SECTIONS || (keywords && PyDict_Size(keywords)))
        return PyErr_Format(PyExc_TypeError, "FileLookup takes a reach, a digest and %d sections", SECTIONS);
    unsigned long reach = PyLong_AsUnsignedLong(PyTuple_GetItem(arguments, 0));
    if (PyErr_Occurred())
        return NULL;
    FileLookup *self = (FileLookup *)PyType_GenericAlloc(type, 0);
    if (!self)
        return NULL;
    self->reach = reach < UINT32_MAX ? reach : UINT32_MAX; /* so added to a slot it does not wrap */
    self->digest = Py_NewRef(PyTuple_GetItem(arguments, 1));
    bool taken = true;
    for (int i = 0; taken && i < SECTIONS; i++)
        taken = take_section(self, i, PyTuple_GetItem(arguments, 2 + i));
    if (taken && use_sections(self))
        return (PyObject *)self;
    if (taken)
        PyErr_SetString(PyExc_ValueError, "the sections' lengths do not fit each other");
    Py_DECREF(self);
    return NULL;
}

static PyMethodDef methods[] = {
    {"file", (PyCFunction)file, METH_O, NULL},
    {"files", (PyCFunction)files, METH_O, NULL},
    {"text", (PyCFunction)text, METH_O, NULL},
    {"is_path_of", (PyCFunction)(void (*)(void))is_path_of, METH_FASTCALL, NULL},
    {0},
};

static PyType_Slot slots[] = {
    {Py_tp_new, make},
    {Py_tp_dealloc, deallocate},
    {Py_tp_methods, methods},
    {0, NULL},
};

static PyType_Spec specification = {
    .name = "metadata._path_lookup.FileLookup",
    .basicsize = sizeof(FileLookup),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = slots,
};

static int fill(PyObject *module)
{
    PyObject *type = PyType_FromSpec(&specification);
    int failed = !type || PyModule_AddObjectRef(module, "FileLookup", type);
    Py_XDECREF(type);
    return failed ? -1 : 0;
}

static PyModuleDef_Slot module_slots[] = {{Py_mod_exec, fill}, {0, NULL}};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT,
    .m_name = "_path_lookup",
    .m_slots = module_slots,
};

PyMODINIT_FUNC PyInit__path_lookup(void)
{
    return PyModuleDef_Init(&module);
}
