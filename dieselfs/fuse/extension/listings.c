/* Listings that readers have begun, for whoever lists ahead of them (dieselfs/fuse/listing_ahead.py). A hint: when nobody takes
 * them in time the newest are dropped, and so are all of the process that lists ahead itself. */
#include "fast_path.h"

#include <sys/eventfd.h>
#include <unistd.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static uint64_t begun[MAX_BEGUN];
static size_t count;
static int event_fd = -1;
static _Atomic bool watched;
static _Atomic uint32_t ignored_pid;

int listings_watch(void)
{
    if (event_fd < 0)
        event_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    watched = event_fd >= 0;
    return event_fd;
}

void listings_ignore(uint32_t pid)
{
    ignored_pid = pid;
}

void note_listing(uint64_t inode, uint32_t pid)
{
    if (!watched || pid == ignored_pid)
        return;
    pthread_mutex_lock(&lock);
    bool first = !count, kept = count < MAX_BEGUN;
    if (kept)
        begun[count++] = inode;
    pthread_mutex_unlock(&lock);
    if (first && kept)
        eventfd_write(event_fd, 1);
}

size_t take_listings(uint64_t inodes[MAX_BEGUN])
{
    eventfd_t ignored;
    eventfd_read(event_fd, &ignored); /* first: what is noted from here on makes it readable again */
    pthread_mutex_lock(&lock);
    size_t taken = count;
    for (size_t i = 0; i < taken; i++)
        inodes[i] = begun[i];
    count = 0;
    pthread_mutex_unlock(&lock);
    return taken;
}
