// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"mustang/internal/bench/cnibench"
	"mustang/internal/bench/evidence"
	"mustang/internal/bench/suites"
	"mustang/internal/lab"
	"mustang/internal/load"
	"mustang/internal/result"
)

// shares reports whether the agents of a path are also those of other labs, which enter
// its namespaces for each socket: rows that are compared then run in the same processes.
func (t *testbed) shares(p suites.Path) bool {
	return !t.counting && t.peer == nil && t.cluster == nil && !encloses(p.Lab)
}

// ownClient reports whether a workload needs a client in the control group of the lab:
// where sockets are translated, and it opens them all the time.
func (t *testbed) ownClient(l *lab.Lab, workload string) bool {
	return workload == load.TCPCRR && (translates(l) || t.home != nil && translates(t.home))
}

// translates reports whether a lab translates addresses at sockets in its control group.
func translates(l *lab.Lab) bool { return l.Options.Via == lab.ViaEBPFSocket }

// prepare returns the connection of a path, which is still to be opened: its server listens, and its client runs.
func (t *testbed) prepare(ctx context.Context, p suites.Path, spec load.Spec) (c *connection, err error) {
	c = &connection{spec: spec}
	if t.cluster == nil {
		if c.lab, err = t.lab(ctx, p.Lab); err != nil {
			return nil, err
		}
	}
	client, server := keysOf(p)
	if !t.shares(p) {
		if _, err = t.agent(ctx, c.lab, server); err == nil {
			c.client, err = t.agent(ctx, c.lab, client)
		}
		return c, err
	}
	from, err := c.lab.Namespace(p.Client)
	if err != nil {
		return nil, err
	}
	c.spec.Namespace = from.Path()
	if err := t.listen(ctx, c.lab, server); err != nil {
		return nil, err
	}
	switch {
	case p.TwoCPUs:
		client = otherClient
	case !t.ownClient(c.lab, spec.Workload):
		client = sharedClient
	}
	c.client, err = t.agent(ctx, c.lab, client)
	return c, err
}

// listen lets the shared server listen in the namespace of a path's server, unless it does.
func (t *testbed) listen(ctx context.Context, l *lab.Lab, server agentKey) error {
	if t.listening[server] {
		return nil
	}
	at, err := l.Namespace(server.place)
	if err != nil {
		return err
	}
	shared, err := t.agent(ctx, l, sharedServer)
	if err != nil {
		return err
	}
	_, err = shared.ListenIn(ctx, at.Path(), server.listen)
	t.listening[server] = err == nil
	return err
}

// moves reports whether the client of a lab is to be in the lab's control group while it
// opens sockets. Where sockets are translated, it is in the lab's group meanwhile, and
// elsewhere in one without translation: a socket stays in the group in which it was opened.
func (t *testbed) moves(c *connection) bool {
	return t.home != nil && c.lab != t.home && c.client == t.agents[sharedClient] &&
		(translates(c.lab) || translates(t.home))
}

// openIn calls open, which opens sockets of a connection's client.
func (t *testbed) openIn(c *connection, open func() error) error {
	if !t.moves(c) {
		return open()
	}
	if err := c.lab.Move(c.client.PID()); err != nil {
		return err
	}
	return errors.Join(open(), t.home.Move(c.client.PID()))
}

// atOnce is the number of connections that are opened or shut side by side: an agent waits most of that time for the
// timers of its runtime, which are slow so that they disturb no turn.
const atOnce = 32

// connect opens connections, and returns the error of each. Those whose client moves follow
// the others, one by one.
func (t *testbed) connect(ctx context.Context, all []*connection) []error {
	errs := make([]error, len(all))
	for _, moving := range []bool{false, true} {
		var indexes []int
		for i, c := range all {
			if t.moves(c) == moving {
				indexes = append(indexes, i)
			}
		}
		together(len(indexes), map[bool]int{false: atOnce, true: 1}[moving], func(n int) {
			i, c := indexes[n], all[indexes[n]]
			errs[i] = t.openIn(c, func() (err error) {
				c.connection, err = c.client.Open(ctx, c.spec)
				return err
			})
		})
	}
	return errs
}

// take measures a path once. If the evidence contradicts the path, it returns the
// sample and an [*evidence.Error].
func (t *testbed) take(ctx context.Context, p suites.Path, spec load.Spec) (s sample, err error) {
	if t.peer != nil {
		return t.takeToPeer(ctx, p, spec)
	}
	c, err := t.prepare(ctx, p, spec)
	if err != nil {
		return s, err
	}
	err = t.openIn(c, func() (err error) {
		s, err = record(evidence.Recorder{Lab: c.lab}, evidence.Flow{Path: p.Path, MayLoseAll: spec.Rate > proofRate},
			func() (load.Measurement, error) { return c.client.Run(ctx, c.spec) })
		return err
	})
	return s, err
}

// record carries the load of a flow between two readings of the recorder.
func record(r evidence.Recorder, flow evidence.Flow, carry func() (load.Measurement, error)) (s sample, err error) {
	s.lab = r.Lab
	s.evidence, err = r.Record(func() (evidence.Flow, error) {
		var err error
		s.measurement, err = carry()
		flow.Measurement = s.measurement
		return flow, err
	})
	return s, err
}

// prove carries a little load over a path as its turns do.
func (t *testbed) prove(ctx context.Context, p suites.Path, spec load.Spec) (s sample, err error) {
	c, err := t.prepare(ctx, p, spec)
	if err != nil {
		return s, err
	}
	return record(evidence.Recorder{Lab: c.lab}, evidence.Flow{Path: p.Path}, func() (load.Measurement, error) {
		if err := t.connect(ctx, []*connection{c})[0]; err != nil {
			return load.Measurement{}, err
		}
		_, err := c.client.Slices(ctx, []load.Slice{{Conn: c.connection.ID, Lead: -1, Duration: spec.Duration}})
		late, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutTimeout)
		defer cancel()
		m, shutErr := c.client.Shut(late, c.connection.ID)
		return m, cmp.Or(err, shutErr)
	})
}

// pluginTestbed returns what calls CNI plugins.
func (t *testbed) pluginTestbed(ctx context.Context, o lab.Options) (*cnibench.Testbed, error) {
	if t.plugins != nil {
		return t.plugins, nil
	}
	l, err := t.lab(ctx, o)
	if err != nil {
		return nil, err
	}
	if t.plugins, err = cnibench.NewTestbed(l); err != nil {
		return nil, err
	}
	t.notes[o] = t.plugins.Note()
	return t.plugins, nil
}

// call calls the plugin of a row, or proves that it works.
func (t *testbed) call(ctx context.Context, row rowSpec, calls int, proof bool) (sample, error) {
	plugins, err := t.pluginTestbed(ctx, row.path.Lab)
	switch {
	case err != nil:
		return sample{}, err
	case proof:
		return sample{}, plugins.Prove(ctx, row.path.Plugin)
	}
	s, err := plugins.Run(ctx, cnibench.Batch{
		Row: row.path.ID, Plugin: row.path.Plugin, Workload: row.workload.Name, Pods: calls,
		Concurrent: row.workload.Flows > 1,
	})
	return sample{measurement: s.Measurement, evidence: s.Evidence}, err
}

const masqueraded = "the server sees another address than the client's: it is masqueraded"

// prove builds the labs of rows and sends a little traffic over each path, so that no
// row starts cold, and a wrong path fails at once.
func (r *run) prove(ctx context.Context, rows []*measuredRow) error {
	if r.options.sliced(rows[0].spec.suite) {
		begun := time.Now()
		if err := r.testbed.build(ctx, labsOf(rows)); err != nil {
			return err
		}
		r.built = time.Since(begun)
	}
	for _, row := range rows {
		if row.done() || row.spec.workload.OfTables() { // whose samples have their own proof
			continue
		}
		s, err := r.take(ctx, row.spec, true)
		switch {
		case err == nil:
			row.proof = s.evidence
			if m := s.measurement; row.spec.path.Ends != nil && m.ServerPeer.Addr() != m.ClientLocal.Addr() {
				row.addNote(masqueraded)
			}
		case ctx.Err() != nil:
			return err
		case errors.Is(err, errors.ErrUnsupported): // by this kernel
			row.skip(err)
		default:
			if err := r.fail(row, err); err != nil {
				return err
			}
		}
	}
	for _, row := range rows {
		row.addNote(r.testbed.notes[row.spec.path.Lab])
	}
	if err := r.testbed.offloads(r.head.Offloads); err != nil || r.options.counting() {
		return err
	}
	return r.write()
}

// counted returns a measurement whose figure are the instructions per packet or transaction. It is an error if
// packets were lost, since their cost is unknown.
func counted(m load.Measurement) (load.Measurement, error) {
	m.Unit, m.CPUUnit = result.UnitPerTransaction, "transaction"
	count := m.Count
	if m.Workload == load.UDPStream {
		m.Unit, m.CPUUnit, count = result.UnitPerPacket, "packet", m.Received
		if m.Received < m.Sent {
			return m, fmt.Errorf("%d of %d packets were lost, their cost is unknown", m.Sent-m.Received, m.Sent)
		}
	}
	if count == 0 || m.BusyNanos == 0 {
		return m, errors.New("no instructions were counted")
	}
	m.Rate, m.Units = float64(m.BusyNanos)/float64(count), float64(count)
	m.Offered, m.Histogram, m.Machine.BusySeconds = 0, nil, 0 // times of this machine mean nothing
	return m, nil
}
