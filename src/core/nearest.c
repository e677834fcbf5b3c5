#include "core/nearest.h"

#include <stdlib.h>
#include <string.h>

#define MOST_DISTANCE 16
/* A cell further than this from the diagonal cannot lead to a distance below the limit. */
#define BAND (2 * MOST_DISTANCE + 3)

int names_limit(const char *name)
{
    size_t third = strlen(name) / 3 + 1;
    return third < MOST_DISTANCE ? (int)third : MOST_DISTANCE;
}

static int core_nearest_least(int a, int b)
{
    return a < b ? a : b;
}

/* Compute the distance row by row. Row i holds the distances between prefixes only where |i - j| <
 * limit: cell j is at j - i + MOST_DISTANCE + 1. */
static int band_distance(const char *a, int a_bytes, const char *b, int b_bytes, int limit)
{
    int rows[3][BAND];
    for (int k = 0; k < BAND; k++)
        rows[0][k] = rows[1][k] = rows[2][k] = limit;
    for (int i = 0; i <= a_bytes; i++) {
        int *row = rows[i % 3], *above = rows[(i + 2) % 3], *two_above = rows[(i + 1) % 3];
        int nearest = limit;
        for (int k = 0; k < BAND; k++)
            row[k] = limit;
        int low = i - limit > 0 ? i - limit : 0, high = core_nearest_least(b_bytes, i + limit);
        for (int j = low; j <= high; j++) {
            int k = j - i + MOST_DISTANCE + 1, value = limit;
            if (i == 0 || j == 0)
                value = i + j;
            if (i > 0 && j > 0)
                value = above[k] + (a[i - 1] != b[j - 1]);
            if (i > 0 && k + 1 < BAND)
                value = core_nearest_least(value, above[k + 1] + 1);
            if (j > 0 && k > 0)
                value = core_nearest_least(value, row[k - 1] + 1);
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
                value = core_nearest_least(value, two_above[k] + 1);
            row[k] = core_nearest_least(value, limit);
            nearest = core_nearest_least(nearest, row[k]);
        }
        if (nearest >= limit)
            return limit;
    }
    return rows[a_bytes % 3][b_bytes - a_bytes + MOST_DISTANCE + 1];
}

int names_distance(const char *a, const char *b, int limit)
{
    limit = core_nearest_least(limit, MOST_DISTANCE + 1);
    while (*a && *a == *b) {
        a++;
        b++;
    }
    size_t a_bytes = strlen(a), b_bytes = strlen(b);
    while (a_bytes > 0 && b_bytes > 0 && a[a_bytes - 1] == b[b_bytes - 1]) {
        a_bytes--;
        b_bytes--;
    }
    size_t apart = a_bytes > b_bytes ? a_bytes - b_bytes : b_bytes - a_bytes;
    if (apart >= (size_t)limit || a_bytes > 4096)
        return limit;
    return band_distance(a, (int)a_bytes, b, (int)b_bytes, limit);
}

names_search names_search_for(const char *wanted)
{
    return (names_search){.wanted = wanted, .limit = names_limit(wanted)};
}

void names_search_try(names_search *search, const char *name)
{
    int distance = names_distance(search->wanted, name, search->limit);
    if (distance >= search->limit)
        return;
    search->nearest = name;
    search->limit = distance;
}
