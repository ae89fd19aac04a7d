// The part of a C library that the generated bindings need: memory and its copying. The size of a
// block is a power of two; freed blocks wait in a list per size.

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define PAGE 65536

// Before every block: the logarithm of its size. 16 bytes, so that the block is aligned for every
// type.
typedef union block {
    struct {
        uint32_t size_log2;
        union block *next;
    } head;
    uint64_t aligned[2];
} block;

// The end of the module's own data, set by the linker.
extern uint8_t __heap_base;

static block *waiting[32];
static uintptr_t end;

void *malloc(size_t wanted) {
    uint32_t size_log2 = 5;
    while (((size_t)1 << size_log2) < wanted + sizeof(block)) {
        if (++size_log2 == 31) abort();
    }
    block *found = waiting[size_log2];
    if (found != NULL) {
        waiting[size_log2] = found->head.next;
        return found + 1;
    }
    if (end == 0) end = ((uintptr_t)&__heap_base + 15) & ~(uintptr_t)15;
    size_t size = (size_t)1 << size_log2, held = __builtin_wasm_memory_size(0) * (size_t)PAGE;
    // A policy without memory can't answer.
    if (end + size > held && __builtin_wasm_memory_grow(0, (end + size - held + PAGE - 1) / PAGE) == SIZE_MAX) abort();
    found = (block *)end;
    end += size;
    found->head.size_log2 = size_log2;
    return found + 1;
}

void free(void *pointer) {
    if (pointer == NULL) return;
    block *freed = (block *)pointer - 1;
    freed->head.next = waiting[freed->head.size_log2];
    waiting[freed->head.size_log2] = freed;
}

void *realloc(void *pointer, size_t wanted) {
    if (pointer == NULL) return malloc(wanted);
    size_t held = ((size_t)1 << ((block *)pointer - 1)->head.size_log2) - sizeof(block);
    if (wanted <= held) return pointer;
    void *moved = malloc(wanted);
    memcpy(moved, pointer, held);
    free(pointer);
    return moved;
}

void *calloc(size_t count, size_t size) {
    if (size != 0 && count > SIZE_MAX / size) abort();
    return memset(malloc(count * size), 0, count * size);
}

// Ends the call: the host then uses its own plan.
void abort(void) {
    __builtin_trap();
}

void *memcpy(void *restrict to, const void *restrict from, size_t count) {
    for (size_t i = 0; i < count; i++) ((uint8_t *)to)[i] = ((const uint8_t *)from)[i];
    return to;
}

void *memmove(void *to, const void *from, size_t count) {
    if ((uintptr_t)to <= (uintptr_t)from) return memcpy(to, from, count);
    for (size_t i = count; i-- > 0;) ((uint8_t *)to)[i] = ((const uint8_t *)from)[i];
    return to;
}

void *memset(void *to, int value, size_t count) {
    for (size_t i = 0; i < count; i++) ((uint8_t *)to)[i] = (uint8_t)value;
    return to;
}

int memcmp(const void *one, const void *other, size_t count) {
    for (size_t i = 0; i < count; i++) {
        int difference = ((const uint8_t *)one)[i] - ((const uint8_t *)other)[i];
        if (difference != 0) return difference;
    }
    return 0;
}

size_t strlen(const char *text) {
    size_t length = 0;
    while (text[length]) length++;
    return length;
}
