/* Chunks in node memory as the fast path sees them, how far their readers are, and the threads that store their
 * files into the kernel's page cache.
 *
 * A chunk is IDLE until one of its files is READ; if it is in memory then, or as soon as it is, it is QUEUED and a storing thread
 * stores (STORING, STORED) every file that was not read yet, but for its sentinels. A file that the kernel has in its cache makes
 * no request, so the sentinels' READs are the only sign of how far the reader is. When every file that was not stored has been
 * READ the chunk is CONSUMED. A READ of a file that was stored says that the kernel dropped it; after a few of these the chunk
 * starts over.
 */
#define _GNU_SOURCE
#include "fast_path.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <time.h>

#define FILES_PER_SENTINEL 64
#define MIN_SENTINELS 2      /* where a chunk has enough files to spare them */
#define SPARE_FILES 16
#define LOST_SHARE 16        /* one file of so many lost, and the chunk starts over */
#define UNKNOWN_LIMIT 8      /* inodes in a row that the kernel does not know: the rest is not tried */
#define UNKNOWN_RETRY 32     /* READs after which it is tried again */
#define BUCKETS 4096
#define MAX_STORERS 16
#define STOP_TIMEOUT_S 2
#define ABANDONED_S 60       /* a chunk that nobody goes on reading leaves the budget */

enum state { IDLE, WANTED, QUEUED, STORING, STORED, CONSUMED, UNKNOWN };

struct Resident {
    uint8_t id[16];
    const uint8_t *bytes;
    uint64_t length;
    void *owner;
    int pins;
    bool held, used;
    Resident *next;
};

struct Chunk {
    Resident *resident;
    Resident *storing; /* pinned while the thread stores from it: READs are answered from it even if it was evicted */
    enum state state;
    uint32_t stored_files;
    uint32_t unstored_files, unstored_left; /* of those: not READ yet */
    uint32_t events;                        /* what makes the chunk start over, or be tried again */
    uint64_t stored_bytes;                  /* what it takes of the budget */
    time_t touched;
    Epoch *epoch;
    Chunk *next_to_store, *next_consumed;
    bool is_consumed; /* in that queue */
};

/* One lock for all of it: held for a few instructions, never in a system call. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t work = PTHREAD_COND_INITIALIZER;
static Resident *residents[BUCKETS], *given_back;
static Chunk *to_store, **last_to_store = &to_store, *consumed;
static StoringStatistics totals;
static uint64_t max_file_bytes;
static pthread_t storers[MAX_STORERS];
static int storer_count;
static _Atomic bool stopping;

/* --- files -------------------------------------------------------------------------------------- */

static bool has(const _Atomic uint8_t *bits, uint64_t inode)
{
    return atomic_load_explicit(&bits[inode / 8], memory_order_relaxed) >> inode % 8 & 1;
}

static bool set(_Atomic uint8_t *bits, uint64_t inode)
{
    uint8_t bit = (uint8_t)(1 << inode % 8);
    return atomic_fetch_or_explicit(&bits[inode / 8], bit, memory_order_relaxed) & bit;
}

static void clear(_Atomic uint8_t *bits, uint64_t inode)
{
    atomic_fetch_and_explicit(&bits[inode / 8], (uint8_t)~(1 << inode % 8), memory_order_relaxed);
}

static uint32_t number_of(const Chunk *chunk)
{
    return (uint32_t)(chunk - chunk->epoch->state);
}

typedef struct {
    uint32_t first, end;
} Files;

static Files files_of(const Chunk *chunk)
{
    const uint32_t *first = chunk->epoch->first_inode + number_of(chunk);
    bool sound = first[0] <= first[1] && first[1] <= chunk->epoch->files;
    return sound ? (Files){first[0], first[1]} : (Files){0, 0};
}

/* Every how many files there is a sentinel; 0 for none. */
static uint32_t sentinel_step(Files files)
{
    uint32_t count = files.end - files.first;
    if (count < SPARE_FILES)
        return 0;
    return count >= MIN_SENTINELS * FILES_PER_SENTINEL ? FILES_PER_SENTINEL : count / MIN_SENTINELS;
}

static bool is_sentinel(Files files, uint32_t inode, uint32_t step)
{
    return step && (inode - files.first) % step == step / 2;
}

int chunks_of(Epoch *epoch)
{
    epoch->state = calloc(epoch->chunks + 1, sizeof *epoch->state);
    epoch->was_read = calloc(epoch->files / 8 + 1, 1);
    epoch->was_stored = calloc(epoch->files / 8 + 1, 1);
    if (!epoch->state || !epoch->was_read || !epoch->was_stored) {
        free_chunks_of(epoch);
        return ENOMEM;
    }
    for (uint64_t i = 0; i < epoch->chunks; i++)
        epoch->state[i].epoch = epoch;
    return 0;
}

void free_chunks_of(Epoch *epoch)
{
    free(epoch->state);
    free((void *)epoch->was_read);
    free((void *)epoch->was_stored);
}

/* --- chunks in memory --------------------------------------------------------------------------- */

static Chunk *find(const Epoch *epoch, const uint8_t id[16])
{
    uint64_t low = 0, high = epoch->chunks;
    while (low < high) {
        uint64_t middle = low + (high - low) / 2;
        int order = memcmp(id, epoch->chunk_id[middle], 16);
        if (!order)
            return &epoch->state[middle];
        *(order < 0 ? &high : &low) = order < 0 ? middle : middle + 1;
    }
    return NULL;
}

static void queue_if_room(Chunk *chunk)
{
    uint64_t bytes = chunk->epoch->payload_bytes[number_of(chunk)];
    if (!storer_count || stopping || totals.outstanding_bytes + bytes > totals.budget_bytes) {
        chunk->state = IDLE;
        return;
    }
    totals.outstanding_bytes += bytes;
    chunk->stored_bytes = bytes; /* corrected when it is stored */
    chunk->state = QUEUED;
    chunk->next_to_store = NULL;
    *last_to_store = chunk;
    last_to_store = &chunk->next_to_store;
    pthread_cond_signal(&work);
}

static void place(Epoch *epoch, Resident *resident)
{
    Chunk *chunk = find(epoch, resident->id);
    if (!chunk || epoch->payload_bytes[number_of(chunk)] != resident->length)
        return;
    chunk->resident = resident;
    if (chunk->state == WANTED)
        queue_if_room(chunk);
}

/* A chunk id ends with a counter. */
static Resident **bucket_of(const uint8_t id[16])
{
    return &residents[(id[14] << 8 | id[15]) % BUCKETS];
}

bool resident_hold(const uint8_t id[16], const uint8_t *bytes, uint64_t length, void *owner)
{
    Resident *resident = calloc(1, sizeof *resident);
    if (!resident)
        return false;
    memcpy(resident->id, id, 16);
    resident->bytes = bytes, resident->length = length, resident->owner = owner;
    resident->held = resident->used = true;
    pthread_mutex_lock(&lock);
    Resident **bucket = bucket_of(id);
    resident->next = *bucket;
    *bucket = resident;
    for (uint64_t i = 1; i <= last_epoch; i++)
        if (epochs[i])
            place(epochs[i], resident);
    pthread_mutex_unlock(&lock);
    return true;
}

void residents_adopt(Epoch *epoch)
{
    pthread_mutex_lock(&lock);
    for (size_t i = 0; i < BUCKETS; i++)
        for (Resident *resident = residents[i]; resident; resident = resident->next)
            place(epoch, resident);
    pthread_mutex_unlock(&lock);
}

static Resident **link_of(const uint8_t id[16])
{
    Resident **link = bucket_of(id);
    while (*link && memcmp((*link)->id, id, 16))
        link = &(*link)->next;
    return link;
}

static void give_back(Resident *resident)
{
    resident->next = given_back;
    given_back = resident;
}

bool resident_release(const uint8_t id[16])
{
    pthread_mutex_lock(&lock);
    Resident **link = link_of(id), *resident = *link;
    if (resident) {
        *link = resident->next;
        for (uint64_t i = 1; i <= last_epoch; i++) {
            Chunk *chunk = epochs[i] ? find(epochs[i], id) : NULL;
            if (chunk && chunk->resident == resident)
                chunk->resident = NULL;
        }
        resident->held = false;
        if (!resident->pins)
            give_back(resident);
    }
    pthread_mutex_unlock(&lock);
    return resident;
}

bool resident_was_used(const uint8_t id[16])
{
    pthread_mutex_lock(&lock);
    Resident *resident = *link_of(id);
    bool used = resident && resident->used;
    if (resident)
        resident->used = false;
    pthread_mutex_unlock(&lock);
    return used;
}

void *resident_given_back(void)
{
    pthread_mutex_lock(&lock);
    Resident *resident = given_back;
    if (resident)
        given_back = resident->next;
    pthread_mutex_unlock(&lock);
    void *owner = resident ? resident->owner : NULL;
    free(resident);
    return owner;
}

static Resident *pinned_resident(Chunk *chunk)
{
    Resident *resident = chunk->resident ? chunk->resident : chunk->storing;
    if (resident) {
        resident->pins++;
        resident->used = true;
    }
    return resident;
}

const uint8_t *pin(Epoch *epoch, uint32_t chunk, Resident **pinned)
{
    pthread_mutex_lock(&lock);
    *pinned = pinned_resident(&epoch->state[chunk]);
    pthread_mutex_unlock(&lock);
    return *pinned ? (*pinned)->bytes : NULL;
}

static void unpin_locked(Resident *resident)
{
    if (--resident->pins == 0 && !resident->held)
        give_back(resident);
}

void unpin(Resident *resident)
{
    pthread_mutex_lock(&lock);
    unpin_locked(resident);
    pthread_mutex_unlock(&lock);
}

/* --- how far the readers are -------------------------------------------------------------------- */

static void leave_budget(Chunk *chunk)
{
    totals.outstanding_bytes -= chunk->stored_bytes;
    chunk->stored_bytes = 0;
}

static void start_over(Chunk *chunk)
{
    Files files = files_of(chunk);
    for (uint32_t inode = files.first; inode < files.end; inode++) {
        clear(chunk->epoch->was_read, inode);
        clear(chunk->epoch->was_stored, inode);
    }
    leave_budget(chunk);
    chunk->events = 0;
    chunk->state = IDLE;
}

static void consume(Chunk *chunk)
{
    leave_budget(chunk);
    totals.consumed_chunks++;
    totals.read_without_request += chunk->stored_files;
    chunk->state = CONSUMED;
    chunk->events = 0;
    if (!chunk->is_consumed) {
        chunk->is_consumed = true;
        chunk->next_consumed = consumed;
        consumed = chunk;
    }
}

static void lost_one(Chunk *chunk)
{
    Files files = files_of(chunk);
    if (++chunk->events > (files.end - files.first) / LOST_SHARE)
        start_over(chunk);
}

/* A file is READ. It will not be stored then: its pages may be locked until the READ is answered, and an answer from
 * Python could be one that waits for a store (a chunk in memory is READ without Python). */
void note_read(Epoch *epoch, uint32_t number, uint32_t inode, bool from_beginning)
{
    Chunk *chunk = &epoch->state[number];
    pthread_mutex_lock(&lock);
    bool again = set(epoch->was_read, inode);
    if (!from_beginning) {
        pthread_mutex_unlock(&lock);
        return;
    }
    if (chunk->state == STORED || chunk->state == CONSUMED) {
        chunk->touched = time(NULL);
        if (again || has(epoch->was_stored, inode))
            lost_one(chunk);
        else if (chunk->state == STORED && --chunk->unstored_left == 0)
            consume(chunk);
    } else if (chunk->state == UNKNOWN && ++chunk->events >= UNKNOWN_RETRY) {
        chunk->events = 0;
        chunk->state = IDLE;
    }
    if (chunk->state == IDLE) {
        set(epoch->was_read, inode); /* also if the chunk has just started over */
        if (chunk->resident)
            queue_if_room(chunk);
        else
            chunk->state = WANTED;
    }
    pthread_mutex_unlock(&lock);
}

bool take_consumed(uint8_t id[16])
{
    pthread_mutex_lock(&lock);
    Chunk *chunk;
    while ((chunk = consumed)) {
        consumed = chunk->next_consumed;
        chunk->is_consumed = false;
        if (chunk->state != CONSUMED) /* it has started over */
            continue;
        memcpy(id, chunk->epoch->chunk_id[number_of(chunk)], 16);
        break;
    }
    pthread_mutex_unlock(&lock);
    return chunk;
}

/* --- storing ------------------------------------------------------------------------------------ */

static int store_file(const Epoch *epoch, uint32_t inode, const uint8_t *bytes, uint32_t length)
{
    struct fuse_notify_store_out out = {.nodeid = inode_of(epoch, inode), .size = length};
    struct fuse_out_header header = {
        .len = (uint32_t)(sizeof header + sizeof out + length), .error = FUSE_NOTIFY_STORE};
    struct iovec parts[] = {{&header, sizeof header}, {&out, sizeof out}, {(void *)bytes, length}};
    return writev(fuse_fd, parts, 3) < 0 ? errno : 0;
}

/* Store what was not read yet. Returns the state that the chunk is in then. */
static enum state store_files(Chunk *chunk, const Resident *resident)
{
    Epoch *epoch = chunk->epoch;
    Files files = files_of(chunk);
    uint32_t step = sentinel_step(files), unknown_in_a_row = 0;
    uint64_t stored = 0, bytes = 0, unknown = 0, failed = 0;
    enum state result = STORED;
    for (uint32_t inode = files.first; inode < files.end && !stopping; inode++) {
        uint64_t length = epoch->length[inode], offset = at(epoch->offset, inode);
        if (!length || length > max_file_bytes || offset + length > resident->length ||
            is_sentinel(files, inode, step) || has(epoch->was_read, inode))
            continue;
        set(epoch->was_stored, inode);
        int error = store_file(epoch, inode, resident->bytes + offset, (uint32_t)length);
        if (!error) {
            stored++, bytes += length;
            unknown_in_a_row = 0;
            continue;
        }
        clear(epoch->was_stored, inode);
        if (error != ENOENT) { /* no memory, or the mount is gone */
            failed++;
            break;
        }
        unknown++;
        if (++unknown_in_a_row == UNKNOWN_LIMIT && !stored) {
            result = UNKNOWN;
            break;
        }
    }
    pthread_mutex_lock(&lock);
    totals.files += stored, totals.bytes += bytes, totals.chunks += stored > 0;
    totals.unknown_inodes += unknown, totals.failed += failed;
    totals.outstanding_bytes -= chunk->stored_bytes - bytes;
    chunk->stored_bytes = bytes;
    chunk->stored_files = (uint32_t)stored;
    pthread_mutex_unlock(&lock);
    return result;
}

static void settle(Chunk *chunk, enum state result)
{
    chunk->state = result;
    chunk->events = 0;
    chunk->touched = time(NULL);
    if (result != STORED)
        return;
    Files files = files_of(chunk);
    uint32_t left = 0;
    for (uint32_t inode = files.first; inode < files.end; inode++)
        left += chunk->epoch->length[inode] && !has(chunk->epoch->was_stored, inode) &&
                !has(chunk->epoch->was_read, inode);
    chunk->unstored_files = chunk->unstored_left = left;
    if (!left)
        consume(chunk);
}

static void *store_ahead(void *unused)
{
    (void)unused;
    pthread_mutex_lock(&lock);
    while (!stopping) {
        Chunk *chunk = to_store;
        if (!chunk) {
            pthread_cond_wait(&work, &lock);
            continue;
        }
        if (!(to_store = chunk->next_to_store))
            last_to_store = &to_store;
        Resident *resident = pinned_resident(chunk);
        if (!resident) { /* evicted meanwhile */
            leave_budget(chunk);
            chunk->state = IDLE;
            continue;
        }
        chunk->state = STORING;
        chunk->storing = resident;
        pthread_mutex_unlock(&lock);
        enum state result = store_files(chunk, resident);
        pthread_mutex_lock(&lock);
        chunk->storing = NULL;
        settle(chunk, result);
        unpin_locked(resident);
    }
    pthread_mutex_unlock(&lock);
    return NULL;
}

int storing_start(int threads, uint64_t largest_file_bytes)
{
    max_file_bytes = largest_file_bytes;
    int error = 0;
    for (; storer_count < threads && storer_count < MAX_STORERS && !error; storer_count += !error)
        error = pthread_create(&storers[storer_count], NULL, store_ahead, NULL);
    return storer_count ? 0 : error;
}

/* Ends within one file: what a thread waits for is answered by the request threads, which end later. False if a thread is
 * still not back after a while: it waits for a READ that Python will not answer. It may be called again. */
bool storing_stop(void)
{
    pthread_mutex_lock(&lock);
    stopping = true;
    pthread_cond_broadcast(&work);
    pthread_mutex_unlock(&lock);
    struct timespec deadline;
    clock_gettime(CLOCK_MONOTONIC, &deadline);
    deadline.tv_sec += STOP_TIMEOUT_S;
    for (; storer_count; storer_count--)
        if (pthread_clockjoin_np(storers[storer_count - 1], NULL, CLOCK_MONOTONIC, &deadline))
            return false;
    return true;
}

void storing_set_budget(uint64_t bytes)
{
    time_t now = time(NULL);
    pthread_mutex_lock(&lock);
    totals.budget_bytes = bytes;
    for (uint64_t e = 1; e <= last_epoch; e++)
        for (uint64_t c = 0; epochs[e] && c < epochs[e]->chunks; c++) {
            Chunk *chunk = &epochs[e]->state[c];
            if (chunk->state == STORED && chunk->stored_bytes && now - chunk->touched > ABANDONED_S)
                leave_budget(chunk);
        }
    pthread_mutex_unlock(&lock);
}

void storing_statistics(StoringStatistics *statistics)
{
    pthread_mutex_lock(&lock);
    *statistics = totals;
    for (uint64_t e = 1; e <= last_epoch; e++)
        for (uint64_t c = 0; epochs[e] && c < epochs[e]->chunks; c++) {
            const Chunk *chunk = &epochs[e]->state[c];
            if (chunk->state == STORED && chunk->unstored_files)
                statistics->read_without_request += (uint64_t)chunk->stored_files *
                    (chunk->unstored_files - chunk->unstored_left) / chunk->unstored_files;
        }
    pthread_mutex_unlock(&lock);
}
