/* The threads that store files of chunks in memory into the kernel's page cache. */
#define _GNU_SOURCE
#include "chunks.h"

#include <errno.h>
#include <string.h>
#include <sys/uio.h>

#define UNKNOWN_LIMIT 8      /* inodes in a row that the kernel does not know: the rest is not tried */
#define MAX_STORERS 16
#define ABANDONED_S 60       /* a chunk that nobody goes on reading leaves the budget */

StoringStatistics totals;

static pthread_cond_t work = PTHREAD_COND_INITIALIZER;
static Chunk *to_store, **last_to_store = &to_store;
static Chunk *ended, **last_ended = &ended;
static uint64_t max_file_bytes;
static pthread_t storers[MAX_STORERS];
static int storer_count;
static _Atomic bool stopping;

/* What one thread is at. */
typedef struct {
    Chunk *chunk;
    Resident *resident;
    Plan *plan;                       /* whose rules hold, or NULL */
    uint64_t round;                   /* of the epoch: it is in vain when that has changed */
    Residue *residue;
    uint64_t files, bytes, unknown, failed;
    bool gave_up;
} Storing;

/* --- the queue -------------------------------------------------------------------------------------- */

void queue(Chunk *chunk)
{
    chunk->state = QUEUED;
    chunk->next_to_store = NULL;
    *last_to_store = chunk;
    last_to_store = &chunk->next_to_store;
    pthread_cond_signal(&work);
}

void queue_if_room(Chunk *chunk)
{
    uint64_t bytes = chunk->epoch->payload_bytes[number_of(chunk)];
    if (!storer_count || stopping || totals.outstanding_bytes + bytes > totals.budget_bytes) {
        chunk->state = IDLE;
        return;
    }
    totals.outstanding_bytes += bytes;
    chunk->stored_bytes = bytes; /* corrected when it is stored */
    queue(chunk);
}

static void unqueue(const Epoch *epoch)
{
    Chunk **link = &to_store;
    while (*link)
        if ((*link)->epoch == epoch)
            *link = (*link)->next_to_store;
        else
            link = &(*link)->next_to_store;
    last_to_store = link;
}

void start_all_over(Epoch *epoch, Residue **unused)
{
    unqueue(epoch);
    epoch->round++;
    memset((void *)epoch->was_read, 0, epoch->files / 8 + 1);
    memset((void *)epoch->was_stored, 0, epoch->files / 8 + 1);
    for (uint64_t i = 0; i < epoch->chunks; i++) {
        Chunk *chunk = &epoch->state[i];
        leave_budget(chunk);
        residue_detach(chunk, unused);
        chunk->events = 0;
        chunk->store_again = false;
        if (chunk->state != STORING)
            chunk->state = IDLE;
    }
}

bool store_by_plan(const uint8_t id[16])
{
    bool queued = false;
    pthread_mutex_lock(&chunks_lock);
    const Epoch *epoch = planned_epoch();
    Chunk *chunk = epoch ? find_chunk(epoch, id) : NULL;
    if (chunk && chunk->resident) {
        if ((queued = chunk->state == IDLE))
            queue(chunk);
        else if (chunk->state == STORING && chunk->storing_round != epoch->round && !chunk->store_again)
            queued = chunk->store_again = true;
    }
    pthread_mutex_unlock(&chunks_lock);
    return queued;
}

/* --- what has ended --------------------------------------------------------------------------------- */

static void end(Chunk *chunk, bool went_well)
{
    chunk->went_well = went_well;
    if (chunk->is_ended)
        return;
    chunk->is_ended = true;
    chunk->next_ended = NULL;
    *last_ended = chunk;
    last_ended = &chunk->next_ended;
}

static Chunk *next_ended(void)
{
    Chunk *chunk = ended;
    if (chunk) {
        if (!(ended = chunk->next_ended))
            last_ended = &ended;
        chunk->is_ended = false;
    }
    return chunk;
}

bool is_any_ended(void)
{
    return ended;
}

void forget_ended(void)
{
    while (next_ended())
        ;
}

bool take_stored(uint8_t id[16], bool *went_well)
{
    pthread_mutex_lock(&chunks_lock);
    Chunk *chunk = next_ended();
    if (chunk) {
        memcpy(id, chunk->epoch->chunk_id[number_of(chunk)], 16);
        *went_well = chunk->went_well;
    }
    pthread_mutex_unlock(&chunks_lock);
    return chunk;
}

/* --- storing ---------------------------------------------------------------------------------------- */

static int store_file(const Epoch *epoch, uint32_t inode, const uint8_t *bytes, uint32_t length)
{
    struct fuse_notify_store_out out = {.nodeid = inode_of(epoch, inode), .size = length};
    struct fuse_out_header header = {
        .len = (uint32_t)(sizeof header + sizeof out + length), .error = FUSE_NOTIFY_STORE};
    struct iovec parts[] = {{&header, sizeof header}, {&out, sizeof out}, {(void *)bytes, length}};
    return writev(fuse_fd, parts, 3) < 0 ? errno : 0;
}

/* Its length if it is whole and small enough, else 0. */
static uint32_t storable(const Storing *storing, uint32_t inode)
{
    const Epoch *epoch = storing->chunk->epoch;
    uint64_t length = epoch->length[inode], end = at(epoch->offset, inode) + length;
    return length <= max_file_bytes && end <= storing->resident->length ? (uint32_t)length : 0;
}

static bool is_wanted(const Storing *storing, Files files, uint32_t inode, uint32_t step)
{
    const Epoch *epoch = storing->chunk->epoch;
    if (has(epoch->was_read, inode))
        return false;
    if (!storing->plan)
        return !is_sentinel(files, inode, step);
    return !plan_is_sentinel(storing->plan, inode) && plan_is_to_come(storing->plan, inode) &&
           !has(epoch->was_stored, inode); /* by an attempt before */
}

static bool is_kept_apart(const Storing *storing, uint32_t inode)
{
    return plan_is_sentinel(storing->plan, inode) && plan_is_to_come(storing->plan, inode) &&
           !has(storing->chunk->epoch->was_read, inode);
}

static void copy_sentinels(Storing *storing)
{
    const Epoch *epoch = storing->chunk->epoch;
    Files files = files_of(storing->chunk);
    uint32_t count = 0;
    uint64_t bytes = 0;
    for (uint32_t inode = files.first; inode < files.end; inode++)
        if (plan_is_sentinel(storing->plan, inode))
            count++, bytes += storable(storing, inode);
    if (!count)
        return;
    if (!(storing->residue = residue_new(count, bytes))) {
        storing->failed++;
        return;
    }
    for (uint32_t inode = files.first; inode < files.end; inode++) {
        uint32_t length = storable(storing, inode);
        if (length && is_kept_apart(storing, inode))
            residue_add(storing->residue, inode, storing->resident->bytes + at(epoch->offset, inode), length);
    }
}

static void store_files(Storing *storing)
{
    Epoch *epoch = storing->chunk->epoch;
    Files files = files_of(storing->chunk);
    uint32_t step = sentinel_step(files), unknown_in_a_row = 0;
    for (uint32_t inode = files.first; inode < files.end && !stopping && epoch->round == storing->round; inode++) {
        uint32_t length = storable(storing, inode);
        if (!length || !is_wanted(storing, files, inode, step))
            continue;
        set(epoch->was_stored, inode);
        int error = store_file(epoch, inode, storing->resident->bytes + at(epoch->offset, inode), length);
        if (!error) {
            storing->files++, storing->bytes += length;
            unknown_in_a_row = 0;
            continue;
        }
        clear(epoch->was_stored, inode);
        if (error != ENOENT) { /* no memory, or the mount is gone */
            storing->failed++;
            break;
        }
        storing->unknown++;
        if (++unknown_in_a_row == UNKNOWN_LIMIT && (storing->plan || !storing->files)) {
            storing->gave_up = true;
            break;
        }
    }
}

static void settle_ahead(Chunk *chunk, const Storing *storing)
{
    totals.outstanding_bytes -= chunk->stored_bytes - storing->bytes;
    chunk->stored_bytes = storing->bytes;
    chunk->stored_files = (uint32_t)storing->files;
    chunk->state = storing->gave_up ? UNKNOWN : STORED;
    chunk->events = 0;
    chunk->touched = time(NULL);
    if (storing->gave_up)
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

static void settle_by_plan(Chunk *chunk, Storing *storing, Residue **unused)
{
    bool went_well = !storing->unknown && !storing->failed;
    totals.plan_files_stored += storing->files;
    if (storing->residue)
        residue_attach(chunk, storing->residue, unused);
    storing->residue = NULL;
    chunk->state = went_well ? STORED : IDLE;
    end(chunk, went_well);
}

/* True if there is something to tell. */
static bool settle(Storing *storing, Residue **unused)
{
    Chunk *chunk = storing->chunk;
    totals.files += storing->files, totals.bytes += storing->bytes, totals.chunks += storing->files > 0;
    totals.unknown_inodes += storing->unknown, totals.failed += storing->failed;
    chunk->storing = NULL;
    bool counts = chunk->epoch->round == storing->round;
    if (counts && storing->plan)
        settle_by_plan(chunk, storing, unused);
    else if (counts)
        settle_ahead(chunk, storing);
    else if (chunk->store_again)
        queue(chunk);
    else
        chunk->state = IDLE;
    chunk->store_again = false;
    unpin(storing->resident);
    if (storing->plan)
        plan_unpin(storing->plan);
    return counts && storing->plan;
}

static void store(Chunk *chunk)
{
    Residue *unused = NULL;
    bool news;
    Storing storing = {
        .chunk = chunk, .resident = pin(chunk), .plan = plan_pin(chunk->epoch), .round = chunk->epoch->round};
    if (storing.resident) {
        chunk->state = STORING;
        chunk->storing = storing.resident;
        chunk->storing_round = storing.round;
        pthread_mutex_unlock(&chunks_lock);
        if (storing.plan)
            copy_sentinels(&storing);
        store_files(&storing);
        pthread_mutex_lock(&chunks_lock);
        news = settle(&storing, &unused);
    } else { /* evicted meanwhile */
        leave_budget(chunk);
        chunk->state = IDLE;
        if ((news = storing.plan)) {
            plan_unpin(storing.plan);
            end(chunk, false);
        }
    }
    pthread_mutex_unlock(&chunks_lock);
    if (news)
        plan_tell();
    residue_free(unused);
    residue_free(storing.residue); /* where it was in vain */
    pthread_mutex_lock(&chunks_lock);
}

static void *store_ahead(void *unused)
{
    (void)unused;
    pthread_mutex_lock(&chunks_lock);
    while (!stopping) {
        Chunk *chunk = to_store;
        if (!chunk) {
            pthread_cond_wait(&work, &chunks_lock);
            continue;
        }
        if (!(to_store = chunk->next_to_store))
            last_to_store = &to_store;
        store(chunk);
    }
    pthread_mutex_unlock(&chunks_lock);
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
 * still not back after `timeout_s`: it waits for a READ that Python will not answer. It may be called again. */
bool storing_stop(double timeout_s)
{
    pthread_mutex_lock(&chunks_lock);
    stopping = true;
    pthread_cond_broadcast(&work);
    pthread_mutex_unlock(&chunks_lock);
    struct timespec deadline;
    clock_gettime(CLOCK_MONOTONIC, &deadline);
    int64_t end_ns = deadline.tv_nsec + (int64_t)(timeout_s * 1e9);
    deadline.tv_sec += end_ns / 1000000000;
    deadline.tv_nsec = end_ns % 1000000000;
    for (; storer_count; storer_count--)
        if (pthread_clockjoin_np(storers[storer_count - 1], NULL, CLOCK_MONOTONIC, &deadline))
            return false;
    return true;
}

void storing_set_budget(uint64_t bytes)
{
    time_t now = time(NULL);
    pthread_mutex_lock(&chunks_lock);
    totals.budget_bytes = bytes;
    for (uint64_t e = 1; e <= last_epoch; e++)
        for (uint64_t c = 0; epochs[e] && c < epochs[e]->chunks; c++) {
            Chunk *chunk = &epochs[e]->state[c];
            if (chunk->state == STORED && chunk->stored_bytes && now - chunk->touched > ABANDONED_S)
                leave_budget(chunk);
        }
    pthread_mutex_unlock(&chunks_lock);
}

void storing_statistics(StoringStatistics *statistics)
{
    pthread_mutex_lock(&chunks_lock);
    *statistics = totals;
    for (uint64_t e = 1; e <= last_epoch; e++)
        for (uint64_t c = 0; epochs[e] && c < epochs[e]->chunks; c++) {
            const Chunk *chunk = &epochs[e]->state[c];
            if (chunk->state == STORED && chunk->unstored_files)
                statistics->read_without_request += (uint64_t)chunk->stored_files *
                    (chunk->unstored_files - chunk->unstored_left) / chunk->unstored_files;
        }
    pthread_mutex_unlock(&chunks_lock);
}
