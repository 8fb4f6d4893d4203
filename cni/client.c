// SPDX-License-Identifier: Apache-2.0
/*
 * The CNI plugin that a runtime runs where an agent does the work: it hands the verb to the agent by the protocol of package server, and
 * runs mustang-cni-full beside itself where that has to do it. A Go program takes longer to start than the agent to attach a pod.
 */
#include "system.h"

#define PLUGIN "mustang-cni-full"
#define PROTOCOL "mustang-cni 2"
#define SOCKET "/run/mustang/agent/cni.sock"

enum { MAX_REQUEST = 128 << 10, MAX_TEXT = 16 << 20, HEAD = 9 };
static const long answer_time = 60000000000; /* in nanoseconds: how long an agent may take */

/* The version and the layout of maps, each with a zero byte at its end: package install writes them over this text. */
char build[256] = "MUSTANG_BUILD";

/* The variables of a request. */
static const char *const variables[] = { "CNI_COMMAND",
					 "CNI_CONTAINERID",
					 "CNI_NETNS",
					 "CNI_IFNAME",
					 "CNI_ARGS",
					 "CNI_PATH",
					 "CNI_NETNS_OVERRIDE",
					 "MUSTANG_CNI_STATE_DIR",
					 "MUSTANG_CNI_RUN_DIR",
					 "MUSTANG_BPF_ROOT",
					 "MUSTANG_CNI_CGROUP" };

static char **arguments, **environment;
static const char *agent; /* the path of its socket */
static char plugin[4096 + sizeof(PLUGIN)];
static char request[MAX_REQUEST + 1]; /* and a byte that tells of more */
static u64 config, size;              /* where the configuration begins in it, and where it ends */
static int config_read, blocked;
static u64 mask_before; /* of signals, if they are blocked */

static const char *value(const char *entry, const char *name)
{
	while (*name && *entry == *name)
		entry++, name++;
	return !*name && *entry == '=' ? entry + 1 : 0;
}

static const char *getenv(const char *name)
{
	for (char **e = environment; *e; e++) {
		const char *v = value(*e, name);
		if (v)
			return v;
	}
	return "";
}

static void exit(int status)
{
	for (;;)
		CALL(exit_group, status);
}

static long write_all(int fd, const char *from, u64 n)
{
	while (n) {
		long done = CALL(write, fd, from, n);
		if (done == -EINTR)
			continue;
		if (done < 0)
			return done;
		from += done;
		n -= done;
	}
	return 0;
}

/* Prints an error of the CNI specification in three parts, and ends. Paths are the administrator's: no text that JSON would escape. */
static void fail(const char *code, const char *before, const char *path, const char *after)
{
	const char *const parts[] = {
		"{\"cniVersion\":\"1.1.0\",\"code\":", code, ",\"msg\":\"", before, path, after, "\"}\n"
	};

	for (u64 i = 0; i < sizeof(parts) / sizeof(*parts); i++)
		write_all(1, parts[i], length(parts[i]));
	exit(1);
}

/* Has standard input give all of the configuration again. */
static long put_back(void)
{
	static char rest[4096];
	long n, fd = CALL(memfd_create, "config", MFD_CLOEXEC);

	if (fd < 0)
		return fd;
	n = write_all(fd, request + config, size - config);
	while (!n) {
		n = CALL(read, 0, rest, sizeof(rest));
		if (n == -EINTR)
			n = 0;
		else if (n == 0)
			break;
		else if (n > 0)
			n = write_all(fd, rest, n);
	}
	if (!n)
		n = CALL(lseek, fd, 0, SEEK_SET);
	if (n >= 0)
		n = CALL(dup3, fd, 0, 0);
	return n;
}

/* Runs the plugin in place of this program. */
static void run_plugin(void)
{
	if (!config_read || put_back() >= 0) {
		if (blocked)
			CALL(rt_sigprocmask, SIG_SETMASK, &mask_before, 0, sizeof(mask_before));
		CALL(execve, plugin, arguments, environment);
	}
	fail("999", "cannot run ", plugin, ", which has to be beside this program");
}

static int dial(void)
{
	struct sockaddr_un at = { AF_UNIX, { 0 } };
	struct ucred peer = { 0, 1, 1 };
	u32 n = sizeof(peer);
	int fd;

	agent = getenv("MUSTANG_CNI_SOCKET");
	if (!*agent)
		agent = SOCKET;
	if (length(agent) >= sizeof(at.path))
		return -1;
	memcpy(at.path, agent, length(agent));
	fd = CALL(socket, AF_UNIX, SOCK_SEQPACKET | O_CLOEXEC | O_NONBLOCK,
		  0); /* without waiting: EAGAIN is that too many wait */
	if (fd < 0 || CALL(connect, fd, &at, sizeof(at)) < 0 ||
	    CALL(getsockopt, fd, SOL_SOCKET, SO_PEERCRED, &peer, &n) < 0 || peer.uid)
		return -1;
	return fd;
}

/* Adds a text and a zero byte to the request; size is too large if there is no room. */
static void add(const char *text)
{
	u64 n = length(text) + 1;

	if (size + n <= MAX_REQUEST)
		memcpy(request + size, text, n);
	size += n;
}

/* Adds a variable of the environment. */
static void add_variable(const char *name)
{
	for (char **e = environment; *e; e++) {
		const char *v = value(*e, name);
		if (v && *v)
			add(*e);
		if (v)
			return;
	}
}

/* Assembles the request, and returns whether it is one. */
static int assemble(void)
{
	add(PROTOCOL);
	add(build);
	add(build + length(build) + 1);
	for (u64 i = 0; i < sizeof(variables) / sizeof(*variables); i++)
		add_variable(variables[i]);
	add("");
	if (size > MAX_REQUEST)
		return 0;
	config = size;
	config_read = 1;
	while (size <= MAX_REQUEST) {
		long n = CALL(read, 0, request + size, sizeof(request) - size);
		if (n == -EINTR)
			continue;
		if (n <= 0)
			return n == 0;
		size += n;
	}
	return 0; /* too long */
}

/* Sends the request, with a descriptor of the pod's network namespace if there is one. */
static long send(int fd)
{
	struct {
		struct cmsghdr head;
		int fds[2]; /* the second is padding */
	} control = { { sizeof(control.head) + sizeof(int), SOL_SOCKET, SCM_RIGHTS }, { -1, 0 } };
	struct iovec data = { request, size };
	struct msghdr message = { 0, 0, &data, 1, 0, 0, 0 };
	const char *netns = getenv("CNI_NETNS");

	if (*netns) /* a FIFO must not block; the agent goes without it */
		control.fds[0] = CALL(openat, AT_FDCWD, netns, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	if (control.fds[0] >= 0) {
		message.control = &control;
		message.control_len = sizeof(control);
	}
	return CALL(sendmsg, fd, &message, MSG_NOSIGNAL);
}

static long now(void)
{
	struct timespec t = { 0, 0 };

	CALL(clock_gettime, CLOCK_MONOTONIC, &t);
	return t.sec * 1000000000 + t.nsec;
}

/* Receives a packet, of one byte at least. */
static long receive(int fd, void *into, u64 n, long end)
{
	for (;;) {
		struct pollfd ready = { fd, POLLIN, 0 };
		long left = end - now(), got;
		struct timespec wait = { left / 1000000000, left % 1000000000 };

		if (left <= 0)
			return -ETIMEDOUT;
		got = CALL(ppoll, &ready, 1, &wait, 0, 0);
		if (got < 0 && got != -EINTR)
			return got;
		got = CALL(recvfrom, fd, into, n, MSG_DONTWAIT, 0, 0);
		if (got != -EAGAIN && got != -EINTR)
			return got ? got : -ECONNRESET;
	}
}

static u32 number(const u8 *at)
{
	return at[0] | at[1] << 8 | at[2] << 16 | (u32)at[3] << 24;
}

/* Receives the answer. Prints a result and ends; returns 0 if the agent has declined, or the error. */
static long answer(int fd)
{
	u8 head[HEAD + 1];
	u64 out, err, had = 0;
	long end = now() + answer_time, n = receive(fd, head, sizeof(head), end), text;

	if (n < 0)
		return n;
	if (n == 1 && head[0] == '-')
		return 0;
	out = number(head + 1);
	err = number(head + 5);
	if (n != HEAD || out + err > MAX_TEXT)
		return -EMSGSIZE;
	text = CALL(mmap, 0, out + err + 1, PROT_READ_WRITE, MAP_PRIVATE_ANONYMOUS, -1, 0);
	if (text < 0 && text > -4096)
		return text;
	while (had < out + err) {
		n = receive(fd, (char *)text + had, out + err - had, end);
		if (n < 0)
			return n;
		had += n;
	}
	write_all(2, (char *)text + out, err);
	exit(write_all(1, (char *)text, out) < 0 ? 1 : head[0]);
	return 0;
}

/* Gives the verb to the agent. Returns if that has declined, or was not sent it. */
static void hand_over(int fd)
{
	const u64 stops = 1UL << (SIGINT - 1) | 1UL << (SIGTERM - 1);
	long err;

	if (!assemble())
		return;
	if (!equal(getenv("CNI_COMMAND"), "GC")) /* short verbs end; the agent gives up GC if this program has gone */
		blocked = CALL(rt_sigprocmask, SIG_BLOCK, &stops, &mask_before, sizeof(stops)) == 0;
	if (send(fd) < 0)
		return;
	err = answer(fd);
	if (err == -ETIMEDOUT)
		fail("11", "the agent at ", agent, " gives no answer within 1m0s");
	if (err < 0)
		fail("11", "the agent at ", agent, " ended before its answer");
}

/* Called with the stack as the kernel has made it. */
void start(long *stack)
{
	const char *verb;
	long n, fd;

	arguments = (char **)(stack + 1);
	environment = arguments + stack[0] + 1;
	do /* no descriptor of its own is to be a standard one that is closed */
		fd = CALL(openat, AT_FDCWD, "/dev/null", O_RDWR);
	while (fd >= 0 && fd < 3);
	CALL(close, fd);
	n = CALL(readlinkat, AT_FDCWD, "/proc/self/exe", plugin, 4096);
	while (n > 0 && plugin[n - 1] != '/')
		n--;
	memcpy(plugin + (n > 0 ? n : 0), PLUGIN, sizeof(PLUGIN));
	verb = getenv("CNI_COMMAND");
	if (*verb && !equal(verb, "VERSION")) {
		fd = dial();
		if (fd >= 0)
			hand_over(fd);
	}
	run_plugin();
}
