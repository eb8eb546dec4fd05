/* What is kept of a chunk that has been stored and has left node memory: its sentinels, which the kernel does not have. */
#include "chunks.h"

#include <stdlib.h>
#include <string.h>

typedef struct {
    uint32_t inode;
    uint64_t at;
} Copy;

struct Residue {
    int pins;
    bool attached;
    uint32_t files, room;
    uint64_t bytes;
    Residue *next;
    uint8_t *content;
    Copy copies[]; /* by inode */
};

Residue *residue_new(uint32_t files, uint64_t bytes)
{
    Residue *residue = malloc(sizeof *residue + files * sizeof(Copy) + bytes);
    if (residue) {
        *residue = (Residue){.room = files};
        residue->content = (uint8_t *)(residue->copies + files);
    }
    return residue;
}

void residue_add(Residue *residue, uint32_t inode, const uint8_t *bytes, uint32_t length)
{
    residue->copies[residue->files++] = (Copy){inode, residue->bytes};
    memcpy(residue->content + residue->bytes, bytes, length);
    residue->bytes += length;
}

static void discard_if_unused(Residue *residue, Residue **unused)
{
    if (residue->attached || residue->pins)
        return;
    residue->next = *unused;
    *unused = residue;
}

void residue_detach(Chunk *chunk, Residue **unused)
{
    Residue *residue = chunk->residue;
    if (!residue)
        return;
    chunk->residue = NULL;
    totals.residue_bytes -= residue->bytes;
    residue->attached = false;
    discard_if_unused(residue, unused);
}

void residue_attach(Chunk *chunk, Residue *residue, Residue **unused)
{
    residue_detach(chunk, unused);
    chunk->residue = residue;
    totals.residue_bytes += residue->bytes;
    residue->attached = true;
}

const uint8_t *residue_pin(Chunk *chunk, uint32_t inode)
{
    Residue *residue = chunk->residue;
    uint32_t low = 0, high = residue ? residue->files : 0;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        const Copy *copy = &residue->copies[middle];
        if (copy->inode == inode) {
            residue->pins++;
            return residue->content + copy->at;
        }
        *(inode < copy->inode ? &high : &low) = inode < copy->inode ? middle : middle + 1;
    }
    return NULL;
}

void residue_unpin(Residue *residue, Residue **unused)
{
    residue->pins--;
    discard_if_unused(residue, unused);
}

void residue_free(Residue *unused)
{
    for (Residue *next; unused; unused = next) {
        next = unused->next;
        free(unused);
    }
}

void residue_drop(const uint8_t id[16])
{
    Residue *unused = NULL;
    pthread_mutex_lock(&chunks_lock);
    for (uint64_t i = 1; i <= last_epoch; i++) {
        Chunk *chunk = epochs[i] ? find_chunk(epochs[i], id) : NULL;
        if (chunk)
            residue_detach(chunk, &unused);
    }
    pthread_mutex_unlock(&chunks_lock);
    residue_free(unused);
}
