// Memory for a policy without a C library: blocks of one arena, each with its size before it; the last one can grow in place, and what is
// freed comes back when the next call begins (see `forget`).
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

static _Alignas(8) uint8_t arena[512 << 10];
static size_t used;

void forget(void) { used = 0; }

void *malloc(size_t size) {
    size_t whole = (size + 15) & ~(size_t)7;
    if (whole < size || whole > sizeof arena - used) abort();
    uint8_t *block = arena + used;
    used += whole;
    *(size_t *)block = size;
    return block + 8;
}

void *realloc(void *old, size_t size) {
    void *block = malloc(size);
    if (old) {
        size_t before = *(size_t *)((uint8_t *)old - 8);
        memcpy(block, old, before < size ? before : size);
    }
    return block;
}

void free(void *block) { (void)block; }

// The bindings refer to it, so that a linker which is given their object file keeps the metadata in it; this host has no need of that.
void __component_type_object_force_link_policy(void) {}

_Noreturn void abort(void) { __builtin_trap(); }

void *memcpy(void *to, const void *from, size_t size) {
    for (size_t i = 0; i < size; i++) ((uint8_t *)to)[i] = ((const uint8_t *)from)[i];
    return to;
}

void *memset(void *to, int value, size_t size) {
    for (size_t i = 0; i < size; i++) ((uint8_t *)to)[i] = (uint8_t)value;
    return to;
}

void *memmove(void *to, const void *from, size_t size) {
    if ((uintptr_t)to <= (uintptr_t)from) return memcpy(to, from, size);
    while (size--) ((uint8_t *)to)[size] = ((const uint8_t *)from)[size];
    return to;
}

size_t strlen(const char *text) {
    size_t length = 0;
    while (text[length]) length++;
    return length;
}
