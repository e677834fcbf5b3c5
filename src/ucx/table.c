/* Hash tables of memories, by kind and id. */
#include <stdlib.h>

#include "ucx/ucx.h"

#define SMALLEST_TABLE 16

static ucx_entry **table_bucket(const ucx_table *table, uint32_t kind, uint64_t id)
{
    uint64_t hash = (id + kind) * UINT64_C(0x9e3779b97f4a7c15);
    return &table->buckets[(size_t)(hash >> 32) & (table->capacity - 1)];
}

ucx_entry *ucx_table_find(const ucx_table *table, uint32_t kind, uint64_t id)
{
    ucx_entry *entry = table->capacity > 0 ? *table_bucket(table, kind, id) : NULL;
    while (entry && (entry->id != id || entry->kind != kind))
        entry = entry->next;
    return entry;
}

static bool table_grow(ucx_table *table)
{
    ucx_table larger = {.capacity = table->capacity > 0 ? 2 * table->capacity : SMALLEST_TABLE,
                        .count = table->count};
    larger.buckets = calloc(larger.capacity, sizeof *larger.buckets);
    if (!larger.buckets)
        return false;
    for (size_t i = 0; i < table->capacity; i++)
        for (ucx_entry *entry = table->buckets[i], *next; entry; entry = next) {
            ucx_entry **bucket = table_bucket(&larger, entry->kind, entry->id);
            next = entry->next;
            entry->next = *bucket;
            *bucket = entry;
        }
    free(table->buckets);
    *table = larger;
    return true;
}

bool ucx_table_add(ucx_table *table, ucx_entry *entry)
{
    if (table->count == table->capacity && !table_grow(table))
        return false;
    ucx_entry **bucket = table_bucket(table, entry->kind, entry->id);
    entry->next = *bucket;
    *bucket = entry;
    table->count++;
    return true;
}

void ucx_table_filter(ucx_table *table, bool (*keep)(ucx_entry *entry, void *context),
                      void *context)
{
    for (size_t i = 0; i < table->capacity; i++)
        for (ucx_entry **at = &table->buckets[i], *entry; (entry = *at);) {
            ucx_entry *next = entry->next;
            if (keep(entry, context)) {
                at = &entry->next;
            } else {
                *at = next;
                table->count--;
            }
        }
}

void ucx_table_remove(ucx_table *table, const ucx_entry *entry)
{
    ucx_entry **at = table_bucket(table, entry->kind, entry->id);
    while (*at != entry)
        at = &(*at)->next;
    *at = entry->next;
    table->count--;
}

void ucx_table_free(ucx_table *table)
{
    free(table->buckets);
    *table = (ucx_table){0};
}
