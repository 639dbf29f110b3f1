/* Copyright (c) 2026, the gpumesh authors
 * GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
 * SPDX-License-Identifier: GPL-3.0-or-later
 *
 * Preloaded into User-mode Linux, which sets the registers of its processes by ptrace(2) from a buffer that ends with
 * those of AVX-512. The kernel of a machine whose processor has more, such as the tiles of AMX, takes all of them or
 * none, and User-mode Linux would stop at its first process. So the rest is left as the process has it.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <elf.h>
#include <stdarg.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/types.h>
#include <sys/uio.h>

static long (*next)(int request, pid_t pid, void *address, void *data);

/* Not on the stack: that of User-mode Linux is small. It has one processor, so there is one call at a time. */
static char whole[64 * 1024];

__attribute__((constructor)) static void find_next(void)
{
    next = dlsym(RTLD_NEXT, "ptrace");
}

static long set_extended(pid_t pid, const struct iovec *given)
{
    struct iovec all = {whole, sizeof whole};
    void *kind = (void *)NT_X86_XSTATE;

    if (next(PTRACE_GETREGSET, pid, kind, &all) < 0)
        return -1;
    memcpy(whole, given->iov_base, given->iov_len < all.iov_len ? given->iov_len : all.iov_len);
    return next(PTRACE_SETREGSET, pid, kind, &all);
}

long ptrace(enum __ptrace_request request, ...)
{
    va_list rest;
    pid_t pid;
    void *address, *data;

    va_start(rest, request);
    pid = va_arg(rest, pid_t);
    address = va_arg(rest, void *);
    data = va_arg(rest, void *);
    va_end(rest);
    if (request == PTRACE_SETREGSET && address == (void *)NT_X86_XSTATE)
        return set_extended(pid, data);
    return next(request, pid, address, data);
}
