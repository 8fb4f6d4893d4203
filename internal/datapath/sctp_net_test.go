// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"net"
	"net/netip"
	"os"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"mustang/internal/netns"
	"mustang/internal/service"
	"mustang/internal/testkit"
)

// testSCTP lets pods call services of SCTP: by sockets if the kernel has SCTP, else by packets that they make
// themselves.
func testSCTP(t *testing.T, n network, d *Datapath, f family) {
	call := callSCTP
	if !hasSCTP() {
		testkit.NeedsOther(t)
		call = callSCTPByPackets
	}
	s := newService(service.SCTP, net.JoinHostPort(f.service, "5203"), net.JoinHostPort(f.pod, "5203"))
	putService(t, d, s)
	before := counts(t, d)
	call(t, n, s.Backends[0].Addr, s.Frontend)
	diff := delta(t, d, before)
	failIf(t, diff["forward"] == 0 || diff["reverse"] == 0 || diff["new_connection"] == 0, "counted %v", diff)
	s.Backends = nil
	putService(t, d, s)
	failsWith(t, refusedSCTP(n.pods[1], s.Frontend), unix.ECONNREFUSED, "%s without backends", s.Frontend)
}

// hasSCTP reports whether the kernel has SCTP.
func hasSCTP() bool {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, unix.IPPROTO_SCTP)
	if err == nil {
		_ = unix.Close(fd)
	}
	return err == nil
}

// callSCTP sends messages to the service and back, from another pod and from the backend's.
func callSCTP(t *testing.T, n network, backend, frontend netip.AddrPort) {
	t.Helper()
	echoSCTP(t, n.pods[0], backend)
	for _, client := range n.pods {
		fd, err := socketSCTP(client, frontend, unix.Connect)
		succeed(t, err, "connect to %s from %s", frontend, client.Name())
		for _, size := range []int{1, 1400, 16 << 10, 60 << 10} { // the last are GSO packets
			message, got := bytes.Repeat([]byte{byte(size)}, size), make([]byte, size)
			noError(t, errOf(unix.Write(fd, message)), "send %d bytes to %s from %s", size, frontend, client.Name())
			for had := 0; had < size; {
				m, err := unix.Read(fd, got[had:])
				testkit.Require(t, err == nil && m != 0,
					"%d bytes to %s from %s: got %d, %v", size, frontend, client.Name(), had, err)
				had += m
			}
			testkit.Check(t, bytes.Equal(message, got),
				"%d bytes to %s from %s: others came back", size, frontend, client.Name())
		}
		_ = unix.Close(fd)
	}
}

// socketSCTP makes a socket that waits for at most twenty seconds, and connects or binds it.
func socketSCTP(ns *netns.Namespace, at netip.AddrPort, use func(fd int, to unix.Sockaddr) error) (fd int, err error) {
	family := unix.AF_INET6
	if at.Addr().Is4() {
		family = unix.AF_INET
	}
	err = ns.Do(func() (err error) {
		if fd, err = unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, unix.IPPROTO_SCTP); err != nil {
			return err
		}
		limit := unix.Timeval{Sec: 20}
		return errors.Join(unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &limit),
			unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &limit), use(fd, sockaddr(at)))
	})
	if err != nil && fd > 0 {
		_ = unix.Close(fd)
	}
	return fd, err
}

// echoSCTP echoes the data of two clients, one after the other.
func echoSCTP(t *testing.T, ns *netns.Namespace, at netip.AddrPort) {
	t.Helper()
	fd, err := socketSCTP(ns, at, func(fd int, at unix.Sockaddr) error {
		return errors.Join(unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1), unix.Bind(fd, at),
			unix.Listen(fd, 8))
	})
	succeed(t, err)
	var running sync.WaitGroup
	running.Go(func() {
		for {
			conn, _, err := unix.Accept(fd)
			if errors.Is(err, unix.EAGAIN) { // no call for a while
				continue
			}
			if err != nil {
				return
			}
			buffer := make([]byte, 1<<16)
			for {
				n, err := unix.Read(conn, buffer)
				if err != nil || n == 0 {
					break
				}
				_, _ = unix.Write(conn, buffer[:n])
			}
			_ = unix.Close(conn)
		}
	})
	t.Cleanup(func() {
		_ = unix.Shutdown(fd, unix.SHUT_RD)
		running.Wait()
		_ = unix.Close(fd)
	})
}

func refusedSCTP(ns *netns.Namespace, to netip.AddrPort) error {
	if hasSCTP() {
		fd, err := socketSCTP(ns, to, unix.Connect)
		if err == nil {
			_ = unix.Close(fd)
		}
		return err
	}
	const tag = 0x12345678
	got, err := initSCTP(ns, packet{src: netip.AddrPortFrom(to.Addr(), 40001), dst: to, ack: tag}, 5*time.Second)
	if err == nil && got[12] == chunkAbort && binary.BigEndian.Uint32(got[4:]) == tag {
		return unix.ECONNREFUSED
	}
	return fmt.Errorf("answer %x: %w", got, err)
}

// callSCTPByPackets makes an association and sends messages; the last is in fragments.
func callSCTPByPackets(t *testing.T, n network, backend, frontend netip.AddrPort) {
	t.Helper()
	server := listenSCTP(t, n.pods[0], backend)
	conn := must(rawSCTP(n.pods[1], frontend.Addr()))(t)
	defer conn.Close()
	p := packet{src: netip.AddrPortFrom(frontend.Addr(), 40000), dst: frontend, proto: protoSCTP}
	for _, step := range []struct {
		send, want uint8
		size       int
	}{
		{chunkInit, chunkInitAck, 0}, {chunkCookieEcho, chunkCookieEcho + 1, 0}, {chunkData, chunkData, 1},
		{chunkData, chunkData, 1400},
		{chunkData, chunkData, 8000},
	} {
		p.flags, p.payload = step.send, string(bytes.Repeat([]byte("s"), step.size))
		got, err := exchangeSCTP(conn, p, 5*time.Second)
		testkit.Require(t, err == nil && got[12] == step.want && string(got[16:]) == string(p.transport()[16:]),
			"chunk %d with %d bytes: answer %.40x (%d bytes), %v", step.send, step.size, got, len(got), err)
	}
	noError(t, server())
}

// rawSCTP makes a socket for SCTP packets without their IP header.
func rawSCTP(ns *netns.Namespace, to netip.Addr) (conn *net.IPConn, err error) {
	err = ns.Do(func() (err error) {
		conn, err = net.DialIP("ip:132", nil, &net.IPAddr{IP: to.AsSlice()})
		return err
	})
	return conn, err
}

// tryPacket sends the first packet of an association, and returns an error if it is answered.
func tryPacket(client *netns.Namespace, to netip.AddrPort) error {
	p := packet{src: netip.AddrPortFrom(to.Addr(), 39999), dst: to}
	if _, err := initSCTP(client, p, 100*time.Millisecond); !errors.Is(err, os.ErrDeadlineExceeded) {
		return fmt.Errorf("it was answered: %w", err)
	}
	return nil
}

// initSCTP sends the first packet of an association from a socket of its own, and returns the answer.
func initSCTP(ns *netns.Namespace, p packet, wait time.Duration) ([]byte, error) {
	conn, err := rawSCTP(ns, p.dst.Addr())
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	p.proto, p.flags = protoSCTP, chunkInit
	return exchangeSCTP(conn, p, wait)
}

// exchangeSCTP sends a packet and returns the answer, after a check of its checksum.
func exchangeSCTP(conn *net.IPConn, p packet, wait time.Duration) ([]byte, error) {
	if err := conn.SetDeadline(time.Now().Add(wait)); err != nil {
		return nil, err
	}
	if _, err := conn.Write(p.transport()); err != nil {
		return nil, err
	}
	buffer := make([]byte, 1<<16)
	n, _, err := conn.ReadFrom(buffer)
	if err != nil {
		return nil, err
	}
	return buffer[:n], checkSCTP(buffer[:n])
}

// checkSCTP returns an error if a packet is too short, or its checksum is wrong.
func checkSCTP(b []byte) error {
	if len(b) < 16 {
		return fmt.Errorf("%d bytes are no SCTP packet", len(b))
	}
	b = bytes.Clone(b)
	sum := binary.LittleEndian.Uint32(b[8:])
	binary.LittleEndian.PutUint32(b[8:], 0)
	if want := crc32.Checksum(b, crc32.MakeTable(crc32.Castagnoli)); sum != want {
		return fmt.Errorf("checksum %#x, want %#x", sum, want)
	}
	return nil
}

// listenSCTP answers SCTP packets: an INIT with INIT-ACK, a COOKIE-ECHO with COOKIE-ACK, and others according to
// their type. The result ends it and returns the first error.
func listenSCTP(t *testing.T, ns *netns.Namespace, at netip.AddrPort) func() error {
	t.Helper()
	var conn *net.IPConn
	succeed(t, ns.Do(func() (err error) {
		conn, err = net.ListenIP("ip:132", &net.IPAddr{IP: at.Addr().AsSlice()})
		return err
	}))
	var failed error
	var running sync.WaitGroup
	running.Go(func() {
		buffer := make([]byte, 1<<16)
		for {
			n, from, err := conn.ReadFrom(buffer)
			if err != nil {
				return
			}
			b := buffer[:n]
			failed = errors.Join(failed, checkSCTP(b))
			chunk := map[uint8]uint8{chunkInit: chunkInitAck, chunkCookieEcho: chunkCookieEcho + 1}[b[12]]
			copy(b, []byte{b[2], b[3], b[0], b[1]})
			b[8], b[9], b[10], b[11], b[12] = 0, 0, 0, 0, chunk
			binary.LittleEndian.PutUint32(b[8:], crc32.Checksum(b, crc32.MakeTable(crc32.Castagnoli)))
			_, err = conn.WriteTo(b, from)
			failed = errors.Join(failed, err)
		}
	})
	stop := sync.OnceValue(func() error {
		_ = conn.Close()
		running.Wait()
		return failed
	})
	t.Cleanup(func() { _ = stop() })
	return stop
}
