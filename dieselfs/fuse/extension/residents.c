/* Chunks in node memory as the fast path sees them: found by their id, and kept while someone reads from them. */
#include "chunks.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define BUCKETS 4096

pthread_mutex_t chunks_lock = PTHREAD_MUTEX_INITIALIZER;

static Resident *residents[BUCKETS], *given_back;

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

Chunk *find_chunk(const Epoch *epoch, const uint8_t id[16])
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

static void place(Epoch *epoch, Resident *resident)
{
    Chunk *chunk = find_chunk(epoch, resident->id);
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
    resident->held = true;
    pthread_mutex_lock(&chunks_lock);
    Resident **bucket = bucket_of(id);
    resident->next = *bucket;
    *bucket = resident;
    for (uint64_t i = 1; i <= last_epoch; i++)
        if (epochs[i])
            place(epochs[i], resident);
    pthread_mutex_unlock(&chunks_lock);
    return true;
}

void residents_adopt(Epoch *epoch)
{
    pthread_mutex_lock(&chunks_lock);
    for (size_t i = 0; i < BUCKETS; i++)
        for (Resident *resident = residents[i]; resident; resident = resident->next)
            place(epoch, resident);
    pthread_mutex_unlock(&chunks_lock);
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
    pthread_mutex_lock(&chunks_lock);
    Resident **link = link_of(id), *resident = *link;
    if (resident) {
        *link = resident->next;
        for (uint64_t i = 1; i <= last_epoch; i++) {
            Chunk *chunk = epochs[i] ? find_chunk(epochs[i], id) : NULL;
            if (chunk && chunk->resident == resident)
                chunk->resident = NULL;
        }
        resident->held = false;
        if (!resident->pins)
            give_back(resident);
    }
    pthread_mutex_unlock(&chunks_lock);
    return resident;
}

void *resident_given_back(void)
{
    pthread_mutex_lock(&chunks_lock);
    Resident *resident = given_back;
    if (resident)
        given_back = resident->next;
    pthread_mutex_unlock(&chunks_lock);
    void *owner = resident ? resident->owner : NULL;
    free(resident);
    return owner;
}

Resident *pin(Chunk *chunk)
{
    Resident *resident = chunk->resident ? chunk->resident : chunk->storing;
    if (resident)
        resident->pins++;
    return resident;
}

void unpin(Resident *resident)
{
    if (--resident->pins == 0 && !resident->held)
        give_back(resident);
}
