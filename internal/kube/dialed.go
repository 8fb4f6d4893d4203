// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"maps"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"
)

// dialed notes the addresses that connections of a client go to: the addresses of an API server with a name can change.
type dialed struct {
	mu    sync.Mutex
	addrs map[netip.Addr]bool
}

func (d *dialed) dial(ctx context.Context, network, address string) (net.Conn, error) {
	dialer := net.Dialer{Timeout: 30 * time.Second, KeepAlive: 30 * time.Second} // as client-go
	conn, err := dialer.DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	if to, ok := conn.RemoteAddr().(*net.TCPAddr); ok {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.addrs[to.AddrPort().Addr().Unmap()] = true
	}
	return conn, nil
}

// Addresses returns the address of the API server or, if it has a name, the addresses that the client has reached.
func (d *dialed) Addresses() []netip.Addr {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.SortedFunc(maps.Keys(d.addrs), netip.Addr.Compare)
}
