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

// dialed notes the addresses that connections of a client go to: those of an API server that has a name can change.
type dialed struct {
	net.Dialer
	mu    sync.Mutex
	addrs map[netip.Addr]bool
}

func newDialed() *dialed {
	// as client-go
	return &dialed{Dialer: net.Dialer{Timeout: 30 * time.Second, KeepAlive: 30 * time.Second},
		addrs: map[netip.Addr]bool{}}
}

func (d *dialed) dial(ctx context.Context, network, address string) (net.Conn, error) {
	conn, err := d.DialContext(ctx, network, address)
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

// Addresses returns the address of the API server, or, if a name stands for it, those that the client has reached it
// at.
func (c *Client) Addresses() []netip.Addr {
	c.dialed.mu.Lock()
	defer c.dialed.mu.Unlock()
	return slices.SortedFunc(maps.Keys(c.dialed.addrs), netip.Addr.Compare)
}
