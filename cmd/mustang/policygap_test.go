// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"mustang/cmd/mustang/internal/cli"
	"mustang/internal/netns"
	"mustang/internal/testkit"
)

// Ports of pod a: each policy of gapPolicies denies pod b the first, and lets it use the second.
const gapDenied, gapAllowed = 4000, 5000

// gapPolicies are sets that say the same of pods a and b, by rules, identities, and tables of ports that differ.
func gapPolicies() []string {
	policy := func(name, rules string) string {
		return fmt.Sprintf("{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: %s}, spec: {podSelector: {matchLabels: {app: a}}, policyTypes: [Ingress], ingress: [%s]}}\n---\n", name, rules)
	}
	b := "from: [{podSelector: {matchLabels: {app: b}}}]"
	ports := func(first, last int) string {
		return fmt.Sprintf("ports: [{protocol: TCP, port: %d, endPort: %d}, {protocol: UDP, port: %d, endPort: %d}]", first, last, first, last)
	}
	return []string{
		policy("one", "{"+b+", "+ports(gapAllowed, gapAllowed)+"}"),
		policy("one", "{"+b+", "+ports(4001, 6000)+"}") + policy("two", "{from: [{ipBlock: {cidr: 10.0.0.0/8}}]}"),
		policy("two", "{from: [{ipBlock: {cidr: 192.168.0.0/16, except: [192.168.99.0/24]}}], "+ports(gapAllowed, 5999)+"}"),
		policy("many", "{"+b+", "+ports(4999, 5001)+"}, {from: [{namespaceSelector: {matchLabels: {team: x}}}]}, {from: [{ipBlock: {cidr: 172.16.0.0/12}}]}") +
			"{apiVersion: policy.networking.k8s.io/v1alpha2, kind: ClusterNetworkPolicy, metadata: {name: c}, spec: {tier: Admin, priority: 1, subject: {pods: {namespaceSelector: {}, podSelector: {matchLabels: {app: a}}}}, " +
			"ingress: [{name: d, action: Deny, from: [{namespaces: {}}], protocols: [{tcp: {destinationPort: {number: 4000}}}, {udp: {destinationPort: {number: 4000}}}]}]}}\n",
	}
}

// flood counts what becomes of pod b's traffic.
type flood struct {
	t                      *testing.T
	a, b                   *netns.Namespace
	sent, answers, arrived atomic.Uint64
	failed                 atomic.Pointer[error]
}

func (f *flood) fail(format string, args ...any) {
	err := fmt.Errorf(format, args...)
	f.failed.CompareAndSwap(nil, &err)
}

// TestPolicyChangesWithoutGap floods a pod with connections that every set of policies denies, and others that every one allows, while
// sets change, pods come and go, and commands are killed. None of the first is let through, none of the others is refused, and a connection
// that stands open lives on.
func TestPolicyChangesWithoutGap(t *testing.T) {
	t.Parallel()
	n := newKillNetwork(t)
	other := n.addPod("192.168.10.12")
	var files []string
	for i, text := range gapPolicies() {
		path := filepath.Join(t.TempDir(), fmt.Sprint(i, ".yaml"))
		if err := os.WriteFile(path, []byte("---\n"+text), 0o600); err != nil {
			t.Fatal(err)
		}
		files = append(files, path)
	}
	n.run("policy apply --file=" + files[0])
	for _, line := range strings.Split(addLabelled, "|") {
		n.run(line)
	}
	f := &flood{t: t, a: n.pods[0], b: n.pods[1]}
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	f.serve(ctx, &running)
	for _, client := range []func(context.Context) error{f.deniedUDP, f.deniedTCP, f.allowedUDP, f.allowedTCP, f.standing} {
		running.Go(func() {
			if err := f.b.Do(func() error { return client(ctx) }); err != nil {
				f.fail("%w", err)
			}
		})
	}
	kills := 0
	for i := range testkit.Repeats(36, 600) {
		line := "policy apply --file=" + files[rand.IntN(len(files))]
		switch i % 6 {
		case 1:
			line = "ep add --netns=" + other + " --host-netns=HOST --label=app=b,n=" + fmt.Sprint(i)
		case 3:
			line = "ep rm 192.168.10.12"
		case 4: // the pod that is protected, and the client, with another label
			line = "ep add --netns=" + []string{"PODA --label=app=a", "PODB --label=app=b"}[rand.IntN(2)] + ",n=" + fmt.Sprint(i) + " --host-netns=HOST"
		}
		if i%3 == 2 && n.killAfter(line, time.Duration(rand.IntN(120))*time.Millisecond) {
			kills++
		} else if i%3 != 2 {
			n.run(line)
		}
		if err := f.failed.Load(); err != nil {
			t.Fatalf("%s: %v", line, *err)
		}
	}
	cancel()
	running.Wait()
	if got := f.arrived.Load(); got > 0 {
		t.Errorf("%d of %d denied packets and connections arrived", got, f.sent.Load())
	}
	if err := f.failed.Load(); err != nil {
		t.Error(*err)
	}
	if kills == 0 || f.sent.Load() < 1000 || f.answers.Load() < 100 {
		t.Errorf("%d kills, %d denied attempts, %d allowed: the test shows nothing", kills, f.sent.Load(), f.answers.Load())
	}
	t.Logf("%d kills, %d denied attempts, %d allowed", kills, f.sent.Load(), f.answers.Load())
}

// addPod adds another pod to the bridge, and returns the name of its namespace.
func (n *killNetwork) addPod(address string) string {
	n.t.Helper()
	ns := testkit.Namespace(n.t, "c")
	n.ip("-n HOST link add vc master br0 type veth peer name eth0 netns " + ns.Name() + "\n-n " + ns.Name() + " addr add " + address + "/24 dev eth0\n-n " +
		ns.Name() + " link set eth0 up\n-n HOST link set vc up")
	return ns.Name()
}

// killAfter runs a command and kills it after a while; false if it ended before.
func (n *killNetwork) killAfter(line string, after time.Duration) bool {
	n.t.Helper()
	cmd := exec.Command("mustang", n.args(line)...)
	cmd.Env = append(os.Environ(), cli.EnvBPFRoot+"="+n.root)
	if err := cmd.Start(); err != nil {
		n.t.Fatal(err)
	}
	time.Sleep(after)
	_ = cmd.Process.Kill()
	return cmd.Wait() != nil
}

// serve answers on the allowed port of pod a, and counts what arrives on the denied one.
func (f *flood) serve(ctx context.Context, running *sync.WaitGroup) {
	f.t.Helper()
	for _, port := range []int{gapDenied, gapAllowed} {
		err := f.a.Do(func() error {
			tcp, err := net.Listen("tcp4", fmt.Sprintf("%s:%d", killPodA, port))
			if err != nil {
				return err
			}
			udp, err := net.ListenPacket("udp4", fmt.Sprintf("%s:%d", killPodA, port))
			if err != nil {
				return err
			}
			context.AfterFunc(ctx, func() { _, _ = tcp.Close(), udp.Close() })
			running.Go(func() { f.accept(tcp, port) })
			running.Go(func() { f.receive(udp, port) })
			return nil
		})
		if err != nil {
			f.t.Fatal(err)
		}
	}
}

func (f *flood) accept(l net.Listener, port int) {
	for {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		if port == gapDenied {
			f.arrived.Add(1)
		}
		go func() {
			_, _ = io.Copy(conn, conn)
			_ = conn.Close()
		}()
	}
}

func (f *flood) receive(c net.PacketConn, port int) {
	buffer := make([]byte, 100)
	for {
		n, from, err := c.ReadFrom(buffer)
		if err != nil {
			return
		}
		if port == gapDenied {
			f.arrived.Add(1)
			continue
		}
		_, _ = c.WriteTo(buffer[:n], from)
	}
}

// sockets runs a function on a new socket again and again, each with a port of its own.
func (f *flood) sockets(ctx context.Context, kind int, use func(fd int) error) error {
	for ctx.Err() == nil {
		fd, err := unix.Socket(unix.AF_INET, kind|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
		if err != nil {
			return err
		}
		err = use(fd)
		_ = unix.Close(fd)
		if err != nil {
			return err
		}
		time.Sleep(200 * time.Microsecond)
	}
	return nil
}

var gapTarget = &unix.SockaddrInet4{Addr: [4]byte{192, 168, 10, 10}, Port: gapDenied}

func (f *flood) deniedUDP(ctx context.Context) error {
	return f.sockets(ctx, unix.SOCK_DGRAM, func(fd int) error {
		f.sent.Add(1)
		return unix.Sendto(fd, []byte("x"), 0, gapTarget)
	})
}

func (f *flood) deniedTCP(ctx context.Context) error {
	return f.sockets(ctx, unix.SOCK_STREAM, func(fd int) error {
		f.sent.Add(1)
		if err := unix.Connect(fd, gapTarget); err != nil && !errors.Is(err, unix.EINPROGRESS) {
			return err
		}
		return nil
	})
}

// roundTrip sends a message and gets it back. A datagram that is lost stays lost.
func roundTrip(conn net.Conn) error {
	var answer [4]byte
	_ = conn.SetDeadline(time.Now().Add(20 * time.Second))
	if _, err := conn.Write([]byte("gap?")); err != nil {
		return err
	}
	_, err := io.ReadFull(conn, answer[:])
	return err
}

func (f *flood) allowed(ctx context.Context, network string) error {
	for ctx.Err() == nil {
		conn, err := (&net.Dialer{Timeout: 20 * time.Second}).Dial(network, net.JoinHostPort(killPodA, strconv.Itoa(gapAllowed)))
		if err == nil {
			err = roundTrip(conn)
			_ = conn.Close()
		}
		if err != nil && ctx.Err() == nil {
			return fmt.Errorf("an allowed connection: %w", err)
		}
		f.answers.Add(1)
		time.Sleep(time.Millisecond)
	}
	return nil
}

func (f *flood) allowedUDP(ctx context.Context) error { return f.allowed(ctx, "udp") }
func (f *flood) allowedTCP(ctx context.Context) error { return f.allowed(ctx, "tcp") }

// standing keeps one connection open.
func (f *flood) standing(ctx context.Context) error {
	conn, err := net.Dial("tcp", net.JoinHostPort(killPodA, strconv.Itoa(gapAllowed)))
	if err != nil {
		return err
	}
	defer conn.Close()
	for ctx.Err() == nil {
		if err := roundTrip(conn); err != nil && ctx.Err() == nil {
			return fmt.Errorf("the connection that stands open: %w", err)
		}
		time.Sleep(time.Millisecond)
	}
	return nil
}
