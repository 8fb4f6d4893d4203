// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/netip"
	"regexp"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"mustang/internal/netns"
	"mustang/internal/rtnl"
	"mustang/internal/testkit"
)

const (
	tunAddresses4 = "10.9.0.1/24"
	tunAddresses6 = "fd00:9::1/64"
)

// TestTUNLines sends packets and looks for their lines.
func TestTUNLines(t *testing.T) {
	for _, offload := range []string{"", " --offload"} {
		t.Run("flags"+offload, func(t *testing.T) {
			ns := testkit.Namespace(t, "tun")
			p := startTUN(t, 1, "--ifname left@"+ns.Name()+" --mtu 1400 --address "+tunAddresses4+" --address "+tunAddresses6+offload)
			if device, err := rtnl.In(ns).Device("left"); err != nil || device.MTU != 1400 {
				t.Errorf("the device is %+v (%v), want one of MTU 1400", device, err)
			}
			for _, address := range []string{"10.9.0.77:53", "[fd00:9::77]:53"} {
				conn, err := testkit.Dial(ns, "udp", address)
				if err != nil {
					t.Fatal(err)
				}
				if _, err := conn.Write(make([]byte, 100)); err != nil {
					t.Fatal(err)
				}
				_ = conn.Close()
				line := map[bool]string{false: "128 IPv4", true: "148 IPv6"}[address[0] == '[']
				p.printed(t, fmt.Sprintf(`\d+\.\d{6} in %s %s > %s UDP`, line, regexp.QuoteMeta(conn.LocalAddr().String()), regexp.QuoteMeta(address)))
				if err := ns.Do(func() error { return sendSYN(netip.MustParseAddrPort(address)) }); err != nil {
					t.Fatal(err)
				}
				p.printed(t, `\d+\.\d{6} in \d+ IPv\d \S+ > `+regexp.QuoteMeta(address)+` TCP SYN`)
			}
			if code := p.end(t, unix.SIGTERM); code != exitDone {
				t.Errorf("exit code %d: %s", code, p.stderr.String())
			}
		})
	}
}

// sendSYN starts to connect to an address without an answer.
func sendSYN(to netip.AddrPort) error {
	family, address := unix.AF_INET6, unix.Sockaddr(&unix.SockaddrInet6{Port: int(to.Port()), Addr: to.Addr().As16()})
	if to.Addr().Is4() {
		family, address = unix.AF_INET, &unix.SockaddrInet4{Port: int(to.Port()), Addr: to.Addr().As4()}
	}
	fd, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if err := unix.Connect(fd, address); !errors.Is(err, unix.EINPROGRESS) {
		return fmt.Errorf("connect to %s: %w", to, err)
	}
	return nil
}

// tunRates sums the rates of one direction in the lines of --stats.
func tunRates(text, label string) (packets, megabits float64) {
	for _, match := range regexp.MustCompile(regexp.QuoteMeta(label)+` (\d+) packets/s (\d+\.\d{3}) Mbit/s`).FindAllStringSubmatch(text, -1) {
		p, _ := strconv.ParseFloat(match[1], 64)
		m, _ := strconv.ParseFloat(match[2], 64)
		packets, megabits = packets+p, megabits+m
	}
	return packets, megabits
}

// TestTUNSwitch joins two namespaces by a process.
func TestTUNSwitch(t *testing.T) {
	for _, flags := range []string{"", " --tap --offload", " --stats"} {
		t.Run("flags"+flags, func(t *testing.T) {
			a, b := testkit.Namespace(t, "a"), testkit.Namespace(t, "b")
			left, right := "dev@"+a.Name(), "dev@"+b.Path()
			p := startTUN(t, 2, "--switch --ifname "+left+" --ifname "+right+
				" --address 10.9.0.1/24@"+left+" --address fd00:9::1/64@"+left+
				" --address 10.9.0.2/24@"+right+" --address fd00:9::2/64@"+right+flags)
			for _, listen := range []string{"10.9.0.2:0", "[fd00:9::2]:0"} {
				tcp := testkit.Echo(t, b, "tcp", listen)
				if _, err := testkit.RoundTrip(t, a, "tcp", tcp.String(), make([]byte, 1<<20)); err != nil {
					t.Error(err)
				}
				udp := testkit.Echo(t, b, "udp", listen)
				if _, err := testkit.RoundTrip(t, a, "udp", udp.String(), make([]byte, 1400)); err != nil {
					t.Error(err)
				}
			}
			if flags == " --stats" {
				testkit.Eventually(t, 10*time.Second, func() error {
					for _, way := range []string{left + " > " + right, right + " > " + left} {
						if _, megabits := tunRates(p.stdout.String(), way); megabits < 8*2 {
							return fmt.Errorf("%s: %.3f Mbit:\n%s", way, megabits, p.stdout.String())
						}
					}
					return nil
				})
			} else if p.stdout.String() != "" {
				t.Errorf("stdout: %s", p.stdout.String())
			}
			if code := p.end(t, unix.SIGTERM); code != exitDone {
				t.Errorf("exit code %d: %s", code, p.stderr.String())
			}
			for _, ns := range []*netns.Namespace{a, b} {
				if _, err := rtnl.In(ns).Device("dev"); !errors.Is(err, fs.ErrNotExist) {
					t.Errorf("the device is there still (%v)", err)
				}
			}
		})
	}
}

// TestTUNEcho talks to the process in all protocols.
func TestTUNEcho(t *testing.T) {
	ns := testkit.Namespace(t, "tun")
	p := startTUN(t, 1, "--echo --offload --ifname left@"+ns.Name()+" --address "+tunAddresses4+" --address "+tunAddresses6)
	for _, address := range []string{"10.9.0.77:7", "[fd00:9::77]:7"} {
		for network, size := range map[string]int{"udp": 1400, "tcp": 1 << 20} {
			conn, err := testkit.Dial(ns, network, address)
			if err != nil {
				t.Error(err)
				continue
			}
			defer conn.Close()
			if err := exchange(conn, size); err != nil {
				t.Errorf("%s %s: %v", network, address, err)
			}
		}
	}
	p.printed(t, `\S+ in 1428 IPv4 10\.9\.0\.1:\d+ > 10\.9\.0\.77:7 UDP`)
	p.printed(t, `\S+ out 1428 IPv4 10\.9\.0\.77:7 > 10\.9\.0\.1:\d+ UDP`)
	p.printed(t, `\S+ out 80 IPv6 \[fd00:9::77\]:7 > \[fd00:9::1\]:\d+ TCP SYN,ACK`)
}

// exchange sends bytes and reads as many back.
func exchange(conn net.Conn, size int) error {
	if err := conn.SetDeadline(time.Now().Add(60 * time.Second)); err != nil {
		return err
	}
	sent := bytes.Repeat([]byte("mustang "), size/8)
	written := make(chan error, 1)
	go func() {
		_, err := conn.Write(sent)
		written <- err
	}()
	received := make([]byte, len(sent))
	if _, err := io.ReadFull(conn, received); err != nil {
		return err
	}
	if !bytes.Equal(received, sent) {
		return errors.New("other bytes came back")
	}
	return <-written
}
