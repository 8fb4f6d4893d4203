/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the client asks of the kernel, without a C library: the numbers of system calls (asm/unistd_64.h, asm-generic/unistd.h), and what of the
 * kernel's headers they need, which are those of the machine that compiles and not always of the one that runs it.
 */
#pragma once

typedef unsigned char u8;
typedef unsigned int u32;
typedef unsigned long u64;

#if defined(__x86_64__)
enum {
	SYS_read = 0,
	SYS_write = 1,
	SYS_close = 3,
	SYS_lseek = 8,
	SYS_mmap = 9,
	SYS_rt_sigprocmask = 14,
	SYS_socket = 41,
	SYS_connect = 42,
	SYS_recvfrom = 45,
	SYS_sendmsg = 46,
	SYS_getsockopt = 55,
	SYS_execve = 59,
	SYS_clock_gettime = 228,
	SYS_exit_group = 231,
	SYS_openat = 257,
	SYS_readlinkat = 267,
	SYS_ppoll = 271,
	SYS_dup3 = 292,
	SYS_memfd_create = 319
};

static long syscall(long number, long a, long b, long c, long d, long e, long f)
{
	register long r10 __asm__("r10") = d;
	register long r8 __asm__("r8") = e;
	register long r9 __asm__("r9") = f;
	long out;

	__asm__ volatile("syscall"
			 : "=a"(out)
			 : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
			 : "rcx", "r11", "memory");
	return out;
}

/* The stack has the arguments and the environment. */
__asm__(".globl _start\n_start:\n\tmov %rsp, %rdi\n\tand $-16, %rsp\n\tcall start\n");
#elif defined(__aarch64__)
enum {
	SYS_dup3 = 24,
	SYS_openat = 56,
	SYS_close = 57,
	SYS_lseek = 62,
	SYS_read = 63,
	SYS_write = 64,
	SYS_ppoll = 73,
	SYS_readlinkat = 78,
	SYS_exit_group = 94,
	SYS_clock_gettime = 113,
	SYS_rt_sigprocmask = 135,
	SYS_socket = 198,
	SYS_connect = 203,
	SYS_recvfrom = 207,
	SYS_getsockopt = 209,
	SYS_sendmsg = 211,
	SYS_execve = 221,
	SYS_mmap = 222,
	SYS_memfd_create = 279
};

static long syscall(long number, long a, long b, long c, long d, long e, long f)
{
	register long x8 __asm__("x8") = number;
	register long x0 __asm__("x0") = a;
	register long x1 __asm__("x1") = b;
	register long x2 __asm__("x2") = c;
	register long x3 __asm__("x3") = d;
	register long x4 __asm__("x4") = e;
	register long x5 __asm__("x5") = f;

	__asm__ volatile("svc 0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4), "r"(x5) : "memory");
	return x0;
}

__asm__(".globl _start\n_start:\n\tmov x0, sp\n\tbl start\n");
#else
#error "no system calls of this processor"
#endif

/* Arguments that are left out are zero. */
#define CALL7(n, a, b, c, d, e, f, ...)                                                                                \
	syscall(SYS_##n, (long)(a), (long)(b), (long)(c), (long)(d), (long)(e), (long)(f))
#define CALL(...) CALL7(__VA_ARGS__, 0, 0, 0, 0, 0, 0)

enum { EINTR = 4, EAGAIN = 11, EPERM = 1, EMSGSIZE = 90, ECONNRESET = 104, ETIMEDOUT = 110 };
enum {
	O_RDONLY = 0,
	O_RDWR = 2,
	O_NONBLOCK = 04000,
	O_CLOEXEC = 02000000,
	AT_FDCWD = -100,
	SEEK_SET = 0,
	MFD_CLOEXEC = 1
};
enum { AF_UNIX = 1, SOCK_SEQPACKET = 5, SOL_SOCKET = 1, SCM_RIGHTS = 1, SO_PEERCRED = 17 };
enum { MSG_DONTWAIT = 0x40, MSG_NOSIGNAL = 0x4000, POLLIN = 1, CLOCK_MONOTONIC = 1 };
enum { PROT_READ_WRITE = 3, MAP_PRIVATE_ANONYMOUS = 0x22, SIG_BLOCK = 0, SIG_SETMASK = 2, SIGINT = 2, SIGTERM = 15 };

struct sockaddr_un {
	unsigned short family;
	char path[108];
};
struct iovec {
	void *base;
	u64 len;
};
struct msghdr {
	void *name;
	u32 name_len;
	struct iovec *iov;
	u64 iov_len;
	void *control;
	u64 control_len;
	u32 flags;
};
struct cmsghdr {
	u64 len;
	int level, type;
};
struct ucred {
	int pid;
	u32 uid, gid;
};
struct pollfd {
	int fd;
	short events, revents;
};
struct timespec {
	long sec, nsec;
};

/* What the compiler calls. */
void *memcpy(void *to, const void *from, u64 n)
{
	u8 *t = to;
	const u8 *f = from;

	while (n--)
		*t++ = *f++;
	return to;
}

void *memset(void *to, int c, u64 n)
{
	u8 *t = to;

	while (n--)
		*t++ = c;
	return to;
}

static u64 length(const char *s)
{
	u64 n = 0;

	while (s[n])
		n++;
	return n;
}

static int equal(const char *a, const char *b)
{
	while (*a && *a == *b)
		a++, b++;
	return *a == *b;
}
