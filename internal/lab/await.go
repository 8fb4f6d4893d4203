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

	"mustang/internal/nl"
)

const (
	// pathTimeout is how long the first packet between two places may take. A switch in
	// user space first has to learn where the other host is.
	pathTimeout = 20 * time.Second
	// pathTry is how long to wait for an answer; the next try waits twice as long.
	pathTry = 20 * time.Millisecond
	// closedPort is where no one listens (discard, RFC 863).
	closedPort = 9
)

// awaitPaths returns when what the lab joins reaches each other, so that no first
// packet of anybody is lost. Guests see to that themselves.
func (l *Lab) awaitPaths(ctx context.Context) error {
	for _, from := range []string{HostB, PodB} {
		for _, to := range []string{HostA, PodA} {
			ns, ok := l.namespaces[from]
			if _, there := l.namespaces[to]; !ok || !there || l.Options.NAT && to == PodA {
				continue
			}
			for _, addr := range Addresses(l.Options, to) {
				if err := awaitPath(ctx, ns, addr); err != nil {
					return fmt.Errorf("%s to %s: %w", from, to, err)
				}
			}
		}
	}
	return nil
}

// awaitPath sends datagrams to a port where no one listens until the answer that
// says so comes back.
func awaitPath(ctx context.Context, from *nl.Namespace, to netip.Addr) error {
	var conn net.Conn
	err := from.Do(func() (err error) {
		conn, err = net.Dial("udp", netip.AddrPortFrom(to, closedPort).String())
		return err
	})
	if err != nil {
		return err
	}
	defer conn.Close()
	deadline := time.Now().Add(pathTimeout)
	for try := pathTry; ; try = min(2*try, time.Second) {
		if err := conn.SetReadDeadline(time.Now().Add(try)); err != nil {
			return err
		}
		_, err = conn.Write([]byte("anybody there?"))
		if err == nil {
			_, err = conn.Read(make([]byte, 1))
		}
		switch {
		case errors.Is(err, unix.ECONNREFUSED):
			return nil
		case ctx.Err() != nil:
			return ctx.Err()
		case time.Now().After(deadline):
			return fmt.Errorf("no answer from %v in %v: %w", to, pathTimeout, err)
		}
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			time.Sleep(pathTry) // "no route" comes at once
		}
	}
}
