// Casts from every dtype to every dtype.
#include "cast.cuh"

#define OF(from, to, a, o)                 \
    KERNEL(sv_cast_##from##_##to) {        \
        map1<a, o, Cast<a, o>>(arguments); \
    }

EACH_CAST(OF)
