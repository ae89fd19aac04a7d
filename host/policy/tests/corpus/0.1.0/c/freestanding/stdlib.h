// What the generated bindings use of the C library, for a target that has none.
#pragma once
#include <stddef.h>

void *malloc(size_t size);
void *realloc(void *old, size_t size);
void free(void *block);
_Noreturn void abort(void);
