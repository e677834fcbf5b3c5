/* Switch from one stack to another, without swapcontext's system call where possible. */
#ifndef EMULATION_SWITCH_H
#define EMULATION_SWITCH_H

#include <stddef.h>

#if defined(__x86_64__)

#include <stdint.h>

typedef struct machine_context {
    void *stack_pointer;
} machine_context;

/* Registers that a call preserves lie on the old stack. */
void context_switch(machine_context *from, const machine_context *to);
__asm__(".text\n"
        ".type context_switch, @function\n"
        "context_switch:\n"
        "    pushq %rbp\n"
        "    pushq %rbx\n"
        "    pushq %r12\n"
        "    pushq %r13\n"
        "    pushq %r14\n"
        "    pushq %r15\n"
        "    movq %rsp, (%rdi)\n"
        "    movq (%rsi), %rsp\n"
        "    popq %r15\n"
        "    popq %r14\n"
        "    popq %r13\n"
        "    popq %r12\n"
        "    popq %rbx\n"
        "    popq %rbp\n"
        "    ret\n"
        ".size context_switch, .-context_switch\n");

static inline void context_make(machine_context *made, char *stack, size_t bytes,
                                void (*entry)(void))
{
    /* The state after a call: the stack is a multiple of 16 before the return address. */
    uintptr_t *top = (uintptr_t *)(void *)(stack + bytes) - 1;
    *--top = (uintptr_t)entry;
    for (int i = 0; i < 6; i++)
        *--top = 0;
    made->stack_pointer = top;
}

#else

#include <ucontext.h>

typedef ucontext_t machine_context;

static inline void context_switch(machine_context *from, const machine_context *to)
{
    swapcontext(from, to);
}

static inline void context_make(machine_context *made, char *stack, size_t bytes,
                                void (*entry)(void))
{
    getcontext(made);
    made->uc_stack.ss_sp = stack;
    made->uc_stack.ss_size = bytes;
    makecontext(made, entry, 0);
}

#endif
#endif
