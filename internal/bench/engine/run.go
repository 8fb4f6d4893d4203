// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"time"

	"mustang/internal/lab"
	"mustang/internal/load"
)

const grace = 30 * time.Second // the longest time of a run beyond its measurement

// ErrUnseen means that a connection ended before its addresses were read. Repeat the run.
var ErrUnseen = errors.New("the connection ended before its addresses were read")

// Run runs the engine once, with a server and a client in the places of a path. The measurement has the addresses and
// the congestion control of the first flow. The error matches [ErrUnseen] if these are unknown.
func (e Engine) Run(ctx context.Context, t Traffic) (m load.Measurement, err error) {
	ctx, cancel := context.WithTimeout(ctx, time.Duration(t.Seconds)*time.Second+grace)
	defer cancel()
	server, err := start(ctx, t.Lab, t.Path.Server, pinned(t.CPUs.Server, e.serve(t)))
	if err != nil {
		return m, err
	}
	defer server.stop()
	if err := server.awaitListener(ctx, cmp.Or(e.control, t.Path.Listen.Port())); err != nil {
		return m, err
	}
	client, err := start(ctx, t.Lab, t.Path.Client, pinned(t.CPUs.Client, e.drive(t)))
	if err != nil {
		return m, err
	}
	defer client.stop()
	var seen load.Measurement
	if !e.serverEnds {
		client.until(ctx, func() bool { // or the client ends, which wait reports
			return lookAt(&seen, client.cmd.Process.Pid, server.cmd.Process.Pid, t)
		})
	}
	if err := client.wait(ctx); err != nil {
		return m, err
	}
	if e.serverEnds {
		if err := server.wait(ctx); err != nil {
			return m, err
		}
	}
	m, err = e.read(t, outputs{client.stdout.Bytes(), server.stdout.Bytes()})
	if err != nil {
		return m, client.failure(err)
	}
	m.Workload, m.Flows = t.Workload, max(t.Flows, 1)
	if !m.ClientLocal.IsValid() {
		m.ClientLocal, m.ClientPeer, m.ServerLocal, m.ServerPeer = seen.ClientLocal, seen.ClientPeer, seen.ServerLocal,
			seen.ServerPeer
		m.ClientCongestion = seen.ClientCongestion
	}
	if !m.ClientLocal.IsValid() {
		return m, fmt.Errorf("%s: %w", e.Name, ErrUnseen)
	}
	if t.Workload != load.UDPStream && m.ClientCongestion != lab.Congestion {
		return m, fmt.Errorf("%s: the client used congestion control %q, want %q", e.Name, m.ClientCongestion, lab.Congestion)
	}
	m.SetRate()
	return m, nil
}

func pinned(cpu int, command []string) []string {
	return append([]string{pinner, "-c", strconv.Itoa(cpu)}, command...)
}

type process struct {
	name           string
	cmd            *exec.Cmd
	stdout, stderr bytes.Buffer
	done           chan struct{} // closed when the program has ended
	err            error         // of Wait
}

func start(ctx context.Context, l *lab.Lab, place string, command []string) (*process, error) {
	p := &process{name: command[3] + " in " + place, cmd: exec.CommandContext(ctx, command[0], command[1:]...),
		done: make(chan struct{})}
	p.cmd.Env = append(os.Environ(), "LC_ALL=C")
	p.cmd.Stdout, p.cmd.Stderr = &p.stdout, &p.stderr
	p.cmd.WaitDelay = time.Second
	if err := l.Start(place, p.cmd); err != nil {
		return nil, fmt.Errorf("start %s: %w", p.name, err)
	}
	go func() {
		p.err = p.cmd.Wait()
		close(p.done)
	}()
	return p, nil
}

func (p *process) stop() {
	_ = p.cmd.Process.Kill()
	<-p.done
}

func (p *process) wait(ctx context.Context) error {
	<-p.done
	switch {
	case ctx.Err() != nil:
		return fmt.Errorf("%s did not end: %w", p.name, ctx.Err())
	case p.err != nil:
		return p.failure(p.err)
	}
	return nil
}

func (p *process) failure(err error) error {
	printed := p.stderr.String() + p.stdout.String()
	if printed = load.Printable(printed[max(len(printed)-printedBytes, 0):]); printed != "" {
		return fmt.Errorf("%s: %w: %s", p.name, err, printed)
	}
	return fmt.Errorf("%s: %w", p.name, err)
}

const printedBytes = 300 // the most of a program's output that an error repeats

// until looks again and again until it has seen something; false if the program or ctx ends before.
func (p *process) until(ctx context.Context, look func() bool) bool {
	for !look() {
		select {
		case <-p.done:
			return false
		case <-ctx.Done():
			return false
		case <-time.After(lookTick):
		}
	}
	return true
}

func (p *process) awaitListener(ctx context.Context, port uint16) error {
	var err error
	listens := p.until(ctx, func() bool {
		var all []tcpSocket
		all, err = tcpSockets(p.cmd.Process.Pid)
		return slices.ContainsFunc(all, func(s tcpSocket) bool { return s.state == stateListen && s.local.Port() == port })
	})
	switch {
	case listens:
		return nil
	case ctx.Err() != nil:
		return errors.Join(fmt.Errorf("%s does not listen on port %d: %w", p.name, port, ctx.Err()), err)
	}
	return p.failure(errors.Join(p.err, errors.New("ended before it listened")))
}
