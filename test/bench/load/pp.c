/* SPDX-License-Identifier: Apache-2.0 */
// pp: tiny network benchmark. Modes: server | rr | crr | stream | udp
// server IP PORT CPU        : RR echo on PORT, CRR on PORT+1, stream sink on PORT+2, UDP sink on PORT+3
// rr     IP PORT CPU SECS   : 1-byte ping-pong on one TCP conn -> tps, p50/p99 us
// crr    IP PORT CPU SECS   : connect + 1 byte req/resp + close per txn -> cps, p50/p99 us
// stream IP PORT CPU SECS   : 128KiB writes, receiver count -> Gbit/s
// udp    IP PORT CPU SECS   : 64-byte payload sendmmsg(32) -> rx pps (receiver count), tx pps
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
static inline uint64_t now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000ull + t.tv_nsec;
}
static void pin(int c)
{
	if (c < 0)
		return;
	cpu_set_t s;
	CPU_ZERO(&s);
	CPU_SET(c, &s);
	sched_setaffinity(0, sizeof s, &s);
}
static void die(const char *m)
{
	perror(m);
	exit(1);
}
static struct sockaddr_in sa(const char *ip, int p)
{
	struct sockaddr_in a = {0};
	a.sin_family = AF_INET;
	a.sin_port = htons(p);
	inet_pton(AF_INET, ip, &a.sin_addr);
	return a;
}
static int lst(const char *ip, int p)
{
	int s = socket(AF_INET, SOCK_STREAM, 0), o = 1;
	setsockopt(s, SOL_SOCKET, SO_REUSEADDR, &o, 4);
	struct sockaddr_in a = sa(ip, p);
	if (bind(s, (void *)&a, sizeof a))
		die("bind");
	if (listen(s, 4096))
		die("listen");
	return s;
}
static int cmp(const void *a, const void *b)
{
	uint32_t x = *(uint32_t *)a, y = *(uint32_t *)b;
	return x < y ? -1 : x > y;
}
#define MAXS 20000000
static uint32_t *smp;
static size_t ns;
static void pct(const char *name, double secs, const char *unit)
{
	qsort(smp, ns, 4, cmp);
	printf("%s_%s=%.0f %s_p50us=%.2f %s_p90us=%.2f %s_p99us=%.2f %s_p999us=%.2f\n", name, unit, ns / secs,
	       name, smp[ns / 2] / 1e3, name, smp[ns * 9 / 10] / 1e3, name, smp[ns * 99 / 100] / 1e3, name,
	       smp[ns * 999 / 1000] / 1e3);
}
int main(int argc, char **argv)
{
	if (argc < 5) {
		fprintf(stderr, "usage\n");
		return 2;
	}
	const char *m = argv[1], *ip = argv[2];
	int port = atoi(argv[3]), cpu = atoi(argv[4]);
	double secs = argc > 5 ? atof(argv[5]) : 2;
	pin(cpu);
	signal(SIGPIPE, SIG_IGN);
	char b[131072] = {0};
	int one = 1;
	if (!strcmp(m, "server")) {
		pid_t p[4];
		for (int k = 0; k < 4; k++) {
			if ((p[k] = fork()) == 0) {
				prctl(PR_SET_PDEATHSIG, SIGKILL);
				if (k == 3) {
					int s = socket(AF_INET, SOCK_DGRAM, 0);
					struct sockaddr_in a = sa(ip, port + 3);
					int rb = 8 << 20;
					setsockopt(s, SOL_SOCKET, SO_RCVBUFFORCE, &rb, 4);
					if (bind(s, (void *)&a, sizeof a))
						die("ubind");
					enum { V = 64 };
					static struct mmsghdr h[V];
					static struct iovec v[V];
					static char d[V][2048];
					struct sockaddr_in src;
					uint64_t c = 0;
					for (;;) {
						for (int i = 0; i < V; i++) {
							v[i].iov_base = d[i];
							v[i].iov_len = 2048;
							memset(&h[i], 0, sizeof h[i]);
							h[i].msg_hdr.msg_iov = &v[i];
							h[i].msg_hdr.msg_iovlen = 1;
							if (i == 0) {
								h[i].msg_hdr.msg_name = &src;
								h[i].msg_hdr.msg_namelen = sizeof src;
							}
						}
						int n = recvmmsg(s, h, V, MSG_WAITFORONE, 0);
						if (n <= 0)
							continue;
						for (int i = 0; i < n; i++) {
							if (d[i][0] == 'Q') {
								sendto(s, &c, 8, 0, (void *)&src, sizeof src);
							} else if (d[i][0] == 'Z') {
								c = 0;
								sendto(s, &c, 8, 0, (void *)&src, sizeof src);
							} else
								c++;
						}
					}
				}
				int l = lst(ip, port + k);
				for (;;) {
					int c = accept(l, 0, 0);
					if (c < 0)
						continue;
					setsockopt(c, IPPROTO_TCP, TCP_NODELAY, &one, 4);
					if (k == 0) {
						while (read(c, b, 1) == 1)
							if (write(c, b, 1) != 1)
								break;
						close(c);
					} else if (k == 1) {
						if (read(c, b, 1) == 1)
							write(c, b, 1);
						read(c, b, 1);
						close(c);
					} else {
						uint64_t t = 0;
						ssize_t n;
						while ((n = read(c, b, sizeof b)) > 0)
							t += n;
						close(c);
					}
				}
			}
		}
		for (int k = 0; k < 4; k++)
			waitpid(p[k], 0, 0);
		return 0;
	}
	smp = malloc(4ull * MAXS);
	if (!strcmp(m, "rr")) {
		int s = socket(AF_INET, SOCK_STREAM, 0);
		struct sockaddr_in a = sa(ip, port);
		if (connect(s, (void *)&a, sizeof a))
			die("connect");
		setsockopt(s, IPPROTO_TCP, TCP_NODELAY, &one, 4);
		for (int i = 0; i < 2000; i++) {
			write(s, b, 1);
			read(s, b, 1);
		}
		uint64_t t0 = now(), e = t0 + secs * 1e9, t = t0;
		while (t < e && ns < MAXS) {
			if (write(s, b, 1) != 1 || read(s, b, 1) != 1)
				die("rr");
			uint64_t n = now();
			smp[ns++] = n - t;
			t = n;
		}
		pct("rr", (t - t0) / 1e9, "tps");
		return 0;
	}
	if (!strcmp(m, "crr")) {
		struct sockaddr_in a = sa(ip, port + 1);
		struct linger lg = {1, 0};
		uint64_t t0 = 0, e = 0, t = 0;
		for (int i = -200;; i++) {
			if (i == 0) {
				t0 = t = now();
				e = t0 + secs * 1e9;
			}
			int s = socket(AF_INET, SOCK_STREAM, 0);
			setsockopt(s, IPPROTO_TCP, TCP_NODELAY, &one, 4);
			if (connect(s, (void *)&a, sizeof a))
				die("crr connect");
			if (write(s, b, 1) != 1 || read(s, b, 1) != 1)
				die("crr");
			setsockopt(s, SOL_SOCKET, SO_LINGER, &lg, sizeof lg);
			close(s);
			if (i >= 0) {
				uint64_t n = now();
				smp[ns++] = n - t;
				t = n;
				if (t >= e || ns >= MAXS)
					break;
			}
		}
		pct("crr", (t - t0) / 1e9, "cps");
		return 0;
	}
	if (!strcmp(m, "stream")) {
		int s = socket(AF_INET, SOCK_STREAM, 0);
		struct sockaddr_in a = sa(ip, port + 2);
		if (connect(s, (void *)&a, sizeof a))
			die("connect");
		uint64_t t0 = now(), e = t0 + secs * 1e9, t = t0, by = 0;
		while (t < e) {
			ssize_t n = write(s, b, sizeof b);
			if (n <= 0)
				die("w");
			by += n;
			t = now();
		}
		printf("stream_gbps=%.3f\n", by * 8 / ((t - t0) / 1e9) / 1e9);
		return 0;
	}
	if (!strcmp(m, "udp")) {
		int s = socket(AF_INET, SOCK_DGRAM, 0);
		struct sockaddr_in a = sa(ip, port + 3);
		if (connect(s, (void *)&a, sizeof a))
			die("c");
		struct timeval tv = {1, 0};
		setsockopt(s, SOL_SOCKET, SO_RCVTIMEO, &tv, sizeof tv);
		enum { V = 32 };
		struct mmsghdr h[V];
		struct iovec v;
		memset(b, 'x', 64);
		v.iov_base = b;
		v.iov_len = 64;
		memset(h, 0, sizeof h);
		for (int i = 0; i < V; i++) {
			h[i].msg_hdr.msg_iov = &v;
			h[i].msg_hdr.msg_iovlen = 1;
		}
		uint64_t rx = 0;
		char z[64] = "Z";
		send(s, z, 64, 0);
		if (recv(s, &rx, 8, 0) != 8)
			die("udp ctl");
		uint64_t t0 = now(), e = t0 + secs * 1e9, t = t0, tx = 0;
		while (t < e) {
			int n = sendmmsg(s, h, V, 0);
			if (n > 0)
				tx += n;
			t = now();
		}
		double d = (t - t0) / 1e9;
		z[0] = 'Q';
		int ok = 0;
		for (int i = 0; i < 20 && !ok; i++) {
			usleep(100000);
			send(s, z, 64, 0);
			if (recv(s, &rx, 8, 0) == 8)
				ok = 1;
		}
		printf("udp64_rxpps=%.0f udp64_txpps=%.0f\n", rx / d, tx / d);
		return 0;
	}
	return 2;
}
