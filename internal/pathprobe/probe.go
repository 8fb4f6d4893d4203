// SPDX-License-Identifier: Apache-2.0

// Package pathprobe finds what the path between two nodes does to packets: see docs/preflight.md.
package pathprobe

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"mustang/internal/netns"
	"mustang/internal/nodenet"
)

// How often a datagram is sent before it counts as lost, and the wait for each answer.
const (
	attempts   = 4
	answerWait = 400 * time.Millisecond
	helloFor   = 5 * time.Second  // wait for the first answer
	tunnelFor  = 15 * time.Second // bounds the stream in the tunnel
)

// Path describes a path to another node.
type Path struct {
	Peer   netip.Addr
	Device string // by which packets leave
	MTU    int    // the device's, in bytes
	// There and Back are the sizes of the largest packets that reach the other node, and that come back.
	There, Back int
	Tunnel      Tunnel
}

// Tunnel describes what VXLAN does on a path.
type Tunnel struct {
	// Stalled is the reason why a stream was not delivered in full; nil: it was.
	Stalled error
	// WrongThere and WrongHere are packets that arrived with a wrong checksum at the other node, and at this one.
	WrongThere, WrongHere uint64
}

// ErrNoAnswer means that no listening end answers.
var ErrNoAnswer = errors.New("no answer")

// prober is the end that asks.
type prober struct {
	*net.UDPConn
	nonce              atomic.Uint64 // answers to earlier ones are ignored
	there, back, wrong atomic.Int64  // the largest values of answers
	refused            atomic.Bool
	heard              chan struct{} // has an item after an answer
}

// Probe probes the path to a listening end, o.At.
func Probe(ctx context.Context, o Options) (path Path, err error) {
	device, local, err := nodenet.Toward(o.Host, o.At.Addr())
	if err != nil {
		return path, err
	}
	path = Path{Peer: o.At.Addr(), Device: device.Name, MTU: device.MTU}
	conn, err := open(o.Host, netip.AddrPort{}, o.At)
	if err != nil {
		return path, err
	}
	defer conn.Close()
	p := &prober{UDPConn: conn, heard: make(chan struct{}, 1)}
	p.nonce.Store(rand.Uint64())
	go p.read()
	for begin := time.Now(); ; {
		if _, err := p.wrongThere(ctx); err == nil {
			break
		}
		switch {
		case ctx.Err() != nil:
			return path, ctx.Err()
		case p.refused.Load():
			return path, fmt.Errorf("%w from %v by UDP: %w", ErrNoAnswer, o.At, unix.ECONNREFUSED)
		case time.Since(begin) > helloFor:
			return path, fmt.Errorf("%w from %v by UDP within %v", ErrNoAnswer, o.At, helloFor)
		}
	}
	if path.There, err = p.largest(ctx, &p.there, Smallest, device.MTU); err != nil {
		return path, err
	}
	if path.Back, err = p.largest(ctx, &p.back, Smallest, path.There); err != nil {
		return path, err
	}
	mtu := min(path.There, path.Back) - nodenet.Overhead(local)
	path.Tunnel, err = p.tunnel(ctx, o, local, mtu)
	return path, err
}

// read notes answers until the socket is closed.
func (p *prober) read() {
	buffer := make([]byte, 1<<16)
	for {
		n, err := p.Read(buffer)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if p.refused.Store(errors.Is(err, unix.ECONNREFUSED)); err != nil {
			continue // EMSGSIZE of a router
		}
		m, ok := decode(buffer[:n])
		if !ok || m.nonce != p.nonce.Load() {
			continue
		}
		to := map[kind]*atomic.Int64{kindThere: &p.there, kindBack: &p.back, kindWrong: &p.wrong}[m.kind]
		if to == nil {
			continue
		}
		to.Store(max(to.Load(), int64(m.value))) // a late answer counts too
		select {
		case p.heard <- struct{}{}:
		default:
		}
	}
}

// ask sends a message of a size in bytes, IP header included, until a condition holds or an answer is overdue. The size
// is the value of the message.
func (p *prober) ask(ctx context.Context, kind kind, size int, enough func() bool) {
	to := p.RemoteAddr().(*net.UDPAddr).AddrPort().Addr()
	payload := message{kind, p.nonce.Load(), uint64(size)}.encode(size - nodenet.Headers(to))
	for range attempts {
		_, _ = p.Write(payload) // too long for the device: lost as well
		overdue := time.After(answerWait)
		for waiting := true; waiting; {
			if enough() {
				return
			}
			select {
			case <-p.heard:
			case <-overdue:
				waiting = false
			case <-ctx.Done():
				return
			}
		}
	}
}

// largest searches for the largest probe that is answered, from low, which passes, to high. Answers raise value.
func (p *prober) largest(ctx context.Context, value *atomic.Int64, low, high int) (int, error) {
	most := int64(high) // a peer may answer with any value
	for size := high; low < high; size = (low + high + 1) / 2 {
		p.ask(ctx, kindProbe, size, func() bool { return value.Load() >= int64(size) })
		if err := ctx.Err(); err != nil {
			return 0, err
		}
		if low = max(low, int(min(most, value.Load()))); low < size {
			high = max(low, size-1)
		}
	}
	return low, nil
}

// tunnel streams through a VXLAN device with packets of at most mtu bytes, and counts wrong checksums.
func (p *prober) tunnel(ctx context.Context, o Options, local netip.Addr, mtu int) (found Tunnel, err error) {
	ns, err := netns.New()
	if err != nil {
		return found, err
	}
	defer func() { err = errors.Join(err, ns.Close()) }()
	own := netip.AddrFrom4([4]byte{insideOther[0], insideOther[1], byte(rand.N(256)), byte(1 + rand.N(254))})
	end := nodenet.ProbeEnd{Host: o.Host, Inside: ns, Local: local, Remote: o.At.Addr(), Port: o.Port, MTU: mtu,
		Address: netip.PrefixFrom(own, inside.Bits())}
	if err := end.Add(); err != nil {
		return found, err
	}
	defer func() { err = errors.Join(err, end.Delete()) }()
	there, err := p.wrongThere(ctx)
	if err != nil {
		return found, err
	}
	here, err := wrongChecksums(o.Host, ns)
	if err != nil {
		return found, err
	}
	ctx, cancel := context.WithTimeout(ctx, tunnelFor)
	defer cancel()
	found.Stalled = stream(ctx, ns)
	now, err := p.wrongThere(context.WithoutCancel(ctx))
	if err != nil {
		return found, err
	}
	found.WrongThere = uint64(max(0, now-there))
	after, err := wrongChecksums(o.Host, ns)
	found.WrongHere = after - here
	return found, err
}

// wrongThere returns how many packets with a wrong checksum the listening end has had.
func (p *prober) wrongThere(ctx context.Context) (int64, error) {
	p.nonce.Add(1)
	p.wrong.Store(-1)
	p.ask(ctx, kindCount, Smallest, func() bool { return p.wrong.Load() >= 0 })
	if p.wrong.Load() < 0 {
		return 0, errors.Join(ctx.Err(), errors.New("the listening end answers no more"))
	}
	return p.wrong.Load(), nil
}

// stream sends bytes to the listening end through the tunnel, which come back.
func stream(ctx context.Context, ns *netns.Namespace) error {
	address := netip.AddrPortFrom(inside.Addr(), DefaultPort).String()
	conn, err := netns.Get(ns, func() (net.Conn, error) { return (&net.Dialer{}).DialContext(ctx, "tcp", address) })
	if err != nil {
		return errors.New("no connection")
	}
	defer conn.Close()
	_ = conn.(*net.TCPConn).SetLinger(0) // if killed, no connection keeps the namespace with the device
	defer context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })()
	go func() { _, _ = conn.Write(make([]byte, streamBytes)) }()
	n, err := io.CopyN(io.Discard, conn, streamBytes)
	if err != nil {
		return fmt.Errorf("%d of %d bytes came back", n, streamBytes)
	}
	return nil
}
