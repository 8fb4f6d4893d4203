// SPDX-License-Identifier: Apache-2.0

// Package pathprobe finds what the path between two nodes does to packets: see docs/preflight.md.
package pathprobe

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/bits"
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

// A series of small probes measures random loss, with a pause after each: a burst could fill a buffer.
const (
	series = 60
	pause  = 2 * time.Millisecond
)

// Path describes a path to another node.
type Path struct {
	Peer   netip.Addr
	Device string // by which packets leave
	MTU    int    // the device's, in bytes
	// There and Back are the sizes of the largest packets that reach the other node, and that come back.
	There, Back int
	// Sent is the number of small probes in a series, Lost of those without an answer.
	Sent, Lost int
	Tunnel     Tunnel
}

// Least is the size in bytes of the largest packets that pass in both directions.
func (p Path) Least() int { return min(p.There, p.Back) }

// SmallMTU returns a sentence about a path MTU to a peer below the MTU of the device; empty: it is not below.
func (p Path) SmallMTU(peer string) string {
	if p.Least() >= p.MTU {
		return ""
	}
	way := "to"
	if p.Back < p.There { // else they are equal
		way = "from"
	}
	return fmt.Sprintf("path MTU %s %s is %d, %s has %d: packets above %[3]d bytes are lost", way, peer, p.Least(),
		p.Device, p.MTU)
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
	local              netip.Addr
	nonce              atomic.Uint64 // answers to earlier ones are ignored
	first, answered    atomic.Uint64 // the first nonce of the series; its answers, a bit for each
	there, back, wrong atomic.Int64  // the largest values of answers
	refused            atomic.Bool
	heard              chan struct{} // has an item after an answer
}

// Probe probes the path to a listening end, o.At.
func Probe(ctx context.Context, o Options) (path Path, err error) {
	p, path, err := dial(o)
	if err != nil {
		return path, err
	}
	defer p.Close()
	err = p.hello(ctx, func() bool { _, err := p.wrongThere(ctx); return err == nil })
	if err == nil {
		err = p.mtu(ctx, &path)
	}
	if err == nil {
		path.Lost, err = p.losses(ctx)
	}
	if err != nil {
		return path, err
	}
	path.Sent = series
	path.Tunnel, err = p.tunnel(ctx, o, path.Least()-nodenet.Overhead(p.local))
	return path, err
}

// ProbeMTU probes only the path MTU. [Answer] is enough at the other end.
func ProbeMTU(ctx context.Context, o Options) (path Path, err error) {
	p, path, err := dial(o)
	if err != nil {
		return path, err
	}
	defer p.Close()
	if err = p.hello(ctx, func() bool { return p.answers(ctx) }); err == nil {
		err = p.mtu(ctx, &path)
	}
	if err == nil && path.Least() < path.MTU { // or the other end has just ended
		err = p.hello(ctx, func() bool { return p.answers(ctx) })
	}
	return path, err
}

func dial(o Options) (p *prober, path Path, err error) {
	device, local, err := nodenet.Toward(o.Host, o.At.Addr())
	if err != nil {
		return nil, path, err
	}
	path = Path{Peer: o.At.Addr(), Device: device.Name, MTU: device.MTU}
	conn, err := open(o.Host, netip.AddrPortFrom(o.From, 0), o.At)
	if err != nil {
		return nil, path, err
	}
	p = &prober{UDPConn: conn, local: local, heard: make(chan struct{}, 1)}
	p.nonce.Store(rand.Uint64())
	go p.read()
	return p, path, nil
}

// hello waits until the other end answers.
func (p *prober) hello(ctx context.Context, answers func() bool) error {
	for begin := time.Now(); !answers(); {
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case p.refused.Load():
			return fmt.Errorf("%w from %v by UDP: %w", ErrNoAnswer, p.RemoteAddr(), unix.ECONNREFUSED)
		case time.Since(begin) > helloFor:
			return fmt.Errorf("%w from %v by UDP within %v", ErrNoAnswer, p.RemoteAddr(), helloFor)
		}
	}
	return nil
}

// answers reports whether the other end answers a small probe.
func (p *prober) answers(ctx context.Context) bool {
	p.nonce.Add(1)
	p.there.Store(0)
	answered := func() bool { return p.there.Load() > 0 }
	p.ask(ctx, kindProbe, Smallest, answered)
	return answered()
}

func (p *prober) mtu(ctx context.Context, path *Path) (err error) {
	if path.There, err = p.largest(ctx, &p.there, Smallest, path.MTU); err == nil {
		path.Back, err = p.largest(ctx, &p.back, Smallest, path.There)
	}
	return err
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
		to := map[kind]*atomic.Int64{kindThere: &p.there, kindBack: &p.back, kindWrong: &p.wrong}[m.kind]
		if !ok || to == nil {
			continue
		}
		if at := m.nonce - p.first.Load(); at < series {
			p.answered.Or(1 << at)
		} else if m.nonce == p.nonce.Load() {
			to.Store(max(to.Load(), int64(m.value))) // a late answer counts too
		}
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
	if low < int(most) { // random loss may have hidden it
		p.ask(ctx, kindProbe, int(most), func() bool { return value.Load() >= most })
	}
	return max(low, int(min(most, value.Load()))), ctx.Err()
}

// losses returns how many probes of a series are not answered, small ones.
func (p *prober) losses(ctx context.Context) (lost int, err error) {
	to := p.RemoteAddr().(*net.UDPAddr).AddrPort().Addr()
	first := p.nonce.Add(series+1) - series
	p.first.Store(first)
	for i := range uint64(series) {
		_, _ = p.Write(message{kindProbe, first + i, Smallest}.encode(Smallest - nodenet.Headers(to)))
		select {
		case <-time.After(pause):
		case <-ctx.Done():
		}
	}
	count := func() int { return bits.OnesCount64(p.answered.Load()) }
	for overdue := time.After(attempts * answerWait); count() < series; {
		select {
		case <-p.heard:
			continue
		case <-overdue:
		case <-ctx.Done():
		}
		break
	}
	if count() == 0 {
		err = fmt.Errorf("%v answered first, then none of %d probes: %s", p.RemoteAddr(), series, silent)
	}
	return series - count(), errors.Join(ctx.Err(), err)
}

const silent = "the listening end has ended, packets are lost, or more packets reach it than it can answer"

// tunnel streams through a VXLAN device with packets of at most mtu bytes, and counts wrong checksums.
func (p *prober) tunnel(ctx context.Context, o Options, mtu int) (found Tunnel, err error) {
	ns, err := netns.New()
	if err != nil {
		return found, err
	}
	defer func() { err = errors.Join(err, ns.Close()) }()
	own := netip.AddrFrom4([4]byte{insideOther[0], insideOther[1], byte(rand.N(256)), byte(1 + rand.N(254))})
	end := nodenet.ProbeEnd{Host: o.Host, Inside: ns, Local: p.local, Remote: o.At.Addr(), Port: o.Port, MTU: mtu,
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
	for range 2 { // without an answer all results are lost
		if p.wrong.Load() < 0 {
			p.ask(ctx, kindCount, Smallest, func() bool { return p.wrong.Load() >= 0 })
		}
	}
	if p.wrong.Load() < 0 {
		return 0, errors.Join(ctx.Err(), fmt.Errorf("%v answered %d of %d probes, then none of %d requests: %s",
			p.RemoteAddr(), bits.OnesCount64(p.answered.Load()), series, 2*attempts, silent))
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
