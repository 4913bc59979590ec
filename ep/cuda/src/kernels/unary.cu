// Unary ops but casts, and predicates.
#include "unary.cuh"

#define OF(op, name, type)                     \
    KERNEL(sv_##name##_##type) {               \
        map1<type, type, op<type>>(arguments); \
    }

EACH_UNARY(OF)
#undef OF

KERNEL(sv_not_bool) { map1<u8, u8, Not>(arguments); }

#define OF(op, name, type)                   \
    KERNEL(sv_##name##_##type) {             \
        map1<type, u8, op<type>>(arguments); \
    }

EACH_PREDICATE(OF)
