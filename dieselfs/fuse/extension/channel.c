/* Threads that read the kernel's requests, and the way on to pyfuse3 for those that Python has to answer.
 *
 * pyfuse3 waits on the descriptor that `fuse_session_fd` gives it and takes a request by `fuse_session_receive_buf`. Both are
 * defined here too. This module is loaded into the global scope before pyfuse3, so pyfuse3 is bound to ours; libfuse's own are
 * found behind them. Neither is a versioned entry point of newer releases of libfuse.
 */
#define _GNU_SOURCE
#define FUSE_USE_VERSION 314

#include "fast_path.h"

#include <dlfcn.h>
#include <errno.h>
#include <fuse_lowlevel.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#define MAX_THREADS 64
#define REQUEST_BYTES ((1 << 20) + (64 << 10)) /* the largest WRITE and its header: the kernel wants room for it */
#define WAKE_SIGNAL (SIGRTMIN + 7)             /* ends a blocking read; it does nothing else */

typedef struct Request {
    struct Request *next;
    size_t length;
    void *bytes;
} Request;

MountView mount_view;
int fuse_fd = -1;

static bool enabled;
static struct fuse_session *session;
static int event_fd = -1; /* counts the requests that wait for Python */
static pthread_t threads[MAX_THREADS];
static int thread_count;
static _Atomic bool stopping, ended;
static _Atomic int running;
static pthread_mutex_t queue_lock = PTHREAD_MUTEX_INITIALIZER;
static Request *first, **last = &first;

static void *libfuse(const char *name)
{
    return dlsym(RTLD_NEXT, name);
}

int fuse_session_fd(struct fuse_session *se)
{
    int fd = ((int (*)(struct fuse_session *))libfuse("fuse_session_fd"))(se);
    if (!enabled || fd < 0)
        return fd;
    if (event_fd < 0)
        event_fd = eventfd(0, EFD_SEMAPHORE | EFD_NONBLOCK | EFD_CLOEXEC);
    if (event_fd < 0)
        return fd;
    session = se;
    fuse_fd = fd;
    return event_fd;
}

int fuse_session_receive_buf(struct fuse_session *se, struct fuse_buf *buffer)
{
    if (se != session)
        return ((int (*)(struct fuse_session *, struct fuse_buf *))libfuse("fuse_session_receive_buf"))(se, buffer);
    uint64_t one;
    if (read(event_fd, &one, sizeof one) < 0)
        return -EINTR; /* another task took it */
    pthread_mutex_lock(&queue_lock);
    Request *request = first;
    if (request && !(first = request->next))
        last = &first;
    pthread_mutex_unlock(&queue_lock);
    if (!request)
        return ended ? 0 : -EINTR;
    free(buffer->mem); /* pyfuse3 frees the last one */
    buffer->mem = request->bytes;
    buffer->size = request->length;
    buffer->flags = 0;
    free(request);
    return (int)buffer->size;
}

static void wake_python(uint64_t count)
{
    ssize_t ignored = write(event_fd, &count, sizeof count);
    (void)ignored;
}

/* A copy of just its length: the requests that Python gets are small. */
static void pass_on(struct fuse_in_header *header, size_t length)
{
    if (header->opcode == FUSE_READ || header->opcode == FUSE_READDIR || header->opcode == FUSE_READDIRPLUS) {
        struct fuse_read_in *arguments = (struct fuse_read_in *)(header + 1);
        if (!arguments->fh) /* there was no OPEN; our handles are inodes */
            arguments->fh = header->nodeid;
    }
    Request *request = malloc(sizeof *request);
    void *bytes = malloc(length);
    if (!request || !bytes) {
        free(request);
        free(bytes);
        struct fuse_out_header out = {.len = sizeof out, .error = -ENOMEM, .unique = header->unique};
        ssize_t ignored = write(fuse_fd, &out, sizeof out);
        (void)ignored;
        return;
    }
    memcpy(bytes, header, length);
    *request = (Request){.length = length, .bytes = bytes};
    pthread_mutex_lock(&queue_lock);
    *last = request;
    last = &request->next;
    pthread_mutex_unlock(&queue_lock);
    wake_python(1);
}

static void end_session(void)
{
    if (!atomic_exchange(&ended, true)) {
        fuse_session_exit(session);
        wake_python(MAX_THREADS); /* whoever waits sees that the session has ended */
    }
}

static void *serve(void *unused)
{
    (void)unused;
    char *buffer = malloc(REQUEST_BYTES), *scratch = malloc(SCRATCH_BYTES);
    while (buffer && scratch && !stopping) {
        ssize_t length = read(fuse_fd, buffer, REQUEST_BYTES);
        if (length < 0) {
            if (errno == ENOENT || errno == EINTR || errno == EAGAIN)
                continue; /* the asker was interrupted, or we are to look whether we stop */
            end_session(); /* ENODEV: unmounted */
            break;
        }
        struct fuse_in_header *header = (struct fuse_in_header *)buffer;
        if ((size_t)length < sizeof *header)
            continue;
        if (!answer(header, (size_t)length, scratch))
            pass_on(header, (size_t)length);
    }
    free(buffer);
    free(scratch);
    running--;
    return NULL;
}

static void on_wake(int number)
{
    (void)number;
}

void channel_enable(void)
{
    enabled = true;
}

bool channel_captured(void)
{
    return session != NULL;
}

int channel_start(int count)
{
    struct sigaction action = {.sa_handler = on_wake}; /* without SA_RESTART */
    sigaction(WAKE_SIGNAL, &action, NULL);
    sigset_t all, before;
    sigfillset(&all);
    sigdelset(&all, WAKE_SIGNAL);
    pthread_sigmask(SIG_BLOCK, &all, &before); /* signals are for Python's main thread */
    int error = 0;
    for (; thread_count < count && thread_count < MAX_THREADS && !error; thread_count += !error) {
        running++;
        if ((error = pthread_create(&threads[thread_count], NULL, serve, NULL)))
            running--;
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return thread_count ? 0 : error;
}

/* Waits for the threads; what they are answering is answered. */
void channel_stop(void)
{
    stopping = true;
    while (running) { /* a signal that comes just before `read` ends nothing, so again */
        for (int i = 0; i < thread_count; i++)
            pthread_kill(threads[i], WAKE_SIGNAL);
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
    for (int i = 0; i < thread_count; i++)
        pthread_join(threads[i], NULL);
    thread_count = 0;
}
