// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"mustang/internal/netns"
)

const (
	// awaitTimeout limits await. A switch in user space has to learn first where the other host is.
	awaitTimeout = 20 * time.Second
	awaitRetry   = 20 * time.Millisecond // the first wait; each further one takes twice as long
	closedPort   = 9                     // where nothing listens (discard, RFC 863)
)

func (l *Lab) await(ctx context.Context, from, to string, addrs []netip.Addr) error {
	for _, addr := range addrs {
		if err := awaitPath(ctx, l.namespaces[from], addr); err != nil {
			return fmt.Errorf("%s to %s: %w", from, to, err)
		}
	}
	return nil
}

// awaitPath waits until an address is reachable from a namespace, so that no first packet of a measurement is lost. It
// sends datagrams to a port where nothing listens until ICMP reports that, for at most 20 s.
func awaitPath(ctx context.Context, from *netns.Namespace, to netip.Addr) error {
	var conn net.Conn
	err := from.Do(func() (err error) {
		conn, err = net.Dial("udp", netip.AddrPortFrom(to, closedPort).String())
		return err
	})
	if err != nil {
		return err
	}
	defer conn.Close()
	deadline := time.Now().Add(awaitTimeout)
	for wait := awaitRetry; ; wait = min(2*wait, time.Second) {
		_ = conn.SetReadDeadline(time.Now().Add(wait))
		if _, err = conn.Write([]byte("mustang")); err == nil {
			_, err = conn.Read(make([]byte, 1))
		}
		switch {
		case errors.Is(err, unix.ECONNREFUSED):
			return nil
		case ctx.Err() != nil:
			return ctx.Err()
		case time.Now().After(deadline):
			return fmt.Errorf("no answer from %v in %v: %w", to, awaitTimeout, err)
		}
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			time.Sleep(awaitRetry) // "no route" returns at once
		}
	}
}
