// SPDX-License-Identifier: Apache-2.0

package cnibench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"time"

	hdrhistogram "github.com/HdrHistogram/hdrhistogram-go"
	"github.com/aclements/go-moremath/stats"

	"mustang/internal/bench/evidence"
	"mustang/internal/lab"
	"mustang/internal/load"
	"mustang/internal/result"
	"mustang/internal/rtnl"
)

type trial struct {
	testbed *Testbed
	Batch
	first bool // allows the plugin to leave a device on the host, which is listed in kept
	kept  []string

	adds, dels  []*call
	host, files []string // the host's devices and the plugins' files before ADD
	empty       int      // number of devices in an unattached pod
	addresses   []netip.Addr
	evidence    result.Evidence
}

// Run measures a batch, and keeps the sample of the other verb, which the same trial yields, until its batch is run.
// If the plugin did not do what it reports, Run returns the evidence with an [*evidence.Error].
func (t *Testbed) Run(ctx context.Context, b Batch) (Sample, error) {
	workload := b.Workload
	b.Workload = ""
	s, ok := t.pending[b][workload]
	if !ok {
		r := trial{testbed: t, Batch: b}
		samples, err := r.run(ctx)
		if err != nil {
			return Sample{Evidence: r.evidence}, err
		}
		t.pending[b], s = samples, samples[workload]
	}
	delete(t.pending[b], workload)
	return s, nil
}

// Prove checks that a plugin works: it attaches a pod and detaches it, twice. The first time may leave a device on the
// host that all pods of the network share; the second time must leave nothing. Further calls return the same error.
func (t *Testbed) Prove(ctx context.Context, plugin *Plugin) error {
	if known, ok := t.proven[plugin]; ok {
		return known.err
	}
	var p proof
	for i := 0; i < 2 && p.err == nil; i++ {
		r := trial{testbed: t, Batch: Batch{Plugin: plugin, Pods: 1}, first: i == 0}
		_, p.err = r.run(ctx)
		p.kept = append(p.kept, r.kept...)
	}
	if ctx.Err() == nil {
		t.proven[plugin] = p
	}
	return p.err
}

func (t *trial) run(ctx context.Context) (samples map[string]Sample, err error) {
	defer func() {
		if err != nil && ctx.Err() == nil {
			err = errors.Join(err, t.testbed.clean(t.dels))
		}
	}()
	if err := t.prepare(); err != nil {
		return nil, err
	}
	add, err := t.measure(ctx, verbAdd, t.adds)
	if err != nil {
		return nil, err
	}
	if err := t.checkAdded(); err != nil {
		return nil, t.contradicted(err)
	}
	for i, c := range t.dels {
		if c.config, err = t.Plugin.config(t.testbed.dirs, t.adds[i].output); err != nil {
			return nil, err
		}
	}
	del, err := t.measure(ctx, verbDel, t.dels)
	if err != nil {
		return nil, err
	}
	if err := t.checkRemoved(); err != nil {
		return nil, t.contradicted(err)
	}
	return map[string]Sample{result.WorkloadCNIAdd: {add, t.evidence}, result.WorkloadCNIDel: {del, t.evidence}}, nil
}

func (t *trial) contradicted(finding error) error {
	t.evidence.Findings = append(t.evidence.Findings, finding.Error())
	return &evidence.Error{Findings: t.evidence.Findings}
}

func (t *trial) prepare() error {
	s := t.testbed
	if err := s.prepare(t.Plugin, t.Pods); err != nil {
		return err
	}
	program, err := t.Plugin.executable()
	if err != nil {
		return err
	}
	if t.Plugin.Agent {
		program = clientIn(s.dirs)
	}
	config, err := t.Plugin.config(s.dirs, nil)
	if err != nil {
		return err
	}
	s.trials++
	base := t.Plugin.environment(program, s.dirs)
	for i, pod := range s.pods[:t.Pods] {
		of := func(verb string) *call {
			return &call{program: program, config: config, env: append(slices.Clone(base), "CNI_COMMAND="+verb,
				fmt.Sprintf("CNI_CONTAINERID=bench-%d-%d", s.trials, i), "CNI_NETNS="+pod.ns.Path())}
		}
		t.adds, t.dels = append(t.adds, of(verbAdd)), append(t.dels, of(verbDel))
	}
	inPod, podErr := rtnl.In(s.pods[0].ns).Devices()
	onHost, hostErr := rtnl.In(s.host).Devices()
	t.empty = len(inPod)
	for _, d := range onHost {
		t.host = append(t.host, d.Name)
	}
	t.files, err = t.pluginFiles()
	t.evidence.Attachments = &result.Attachments{Kept: s.proven[t.Plugin].kept}
	return cmp.Or(podErr, hostErr, err)
}

// measure makes calls of a verb and times them: one after the other, or all at once, each from the common start.
func (t *trial) measure(ctx context.Context, verb string, calls []*call) (m load.Measurement, err error) {
	carry := inTurn
	if t.Concurrent {
		carry = together
	}
	if err := t.testbed.watch.Begin(); err != nil {
		return m, err
	}
	if err := carry(ctx, t.testbed.host, calls); err != nil {
		return m, fmt.Errorf("%s: %w", verb, err)
	}
	machine, err := t.testbed.watch.End()
	if err != nil {
		return m, err
	}
	n := len(calls)
	m = load.Measurement{
		Workload: workloads[verb], Flows: 1, Count: uint64(n), Units: float64(n), Unit: result.UnitMilliseconds,
		CPUUnit: CallUnit, Machine: machine, Histogram: hdrhistogram.New(1, slowestCall, 3),
	}
	if t.Concurrent {
		m.Flows = n
	}
	var took []float64
	for _, c := range calls {
		d := c.ended.Sub(c.begun)
		took = append(took, d.Seconds()*1e3)
		if err := m.Histogram.RecordValue(int64(d)); err != nil {
			return m, err
		}
		m.Seconds = max(m.Seconds, c.ended.Sub(calls[0].begun).Seconds())
	}
	m.Rate = stats.Sample{Xs: took}.Quantile(0.5)
	return m, nil
}

func (t *trial) pluginFiles() (out []string, err error) {
	for _, dir := range []string{t.testbed.dirs.State, t.testbed.dirs.Run} {
		err = errors.Join(err, filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
			if err == nil && !entry.IsDir() {
				out = append(out, path)
			}
			return err
		}))
	}
	return out, err
}

// leased returns the address of a lease. For host-local it is the name, else the part before "@CONTAINER@INTERFACE".
func leased(file string) string {
	addr, _, _ := strings.Cut(filepath.Base(file), "@")
	return addr
}

// checkAdded checks that each address in a result is on its pod's device and reserved, and that the last pod reaches
// its gateway.
func (t *trial) checkAdded() error {
	files, err := t.pluginFiles()
	if err != nil {
		return err
	}
	reserved := map[string]bool{}
	for _, file := range files {
		reserved[leased(file)] = true
	}
	for i, c := range t.adds {
		addrs, err := c.addresses()
		if err != nil {
			return err
		}
		pod := t.testbed.pods[i]
		device, err := rtnl.In(pod.ns).Device(lab.IfName)
		if err != nil {
			return fmt.Errorf("%s after %s: %w", pod.name, verbAdd, err)
		}
		for _, addr := range addrs {
			has := slices.ContainsFunc(device.Addrs, func(p netip.Prefix) bool { return p.Addr() == addr })
			switch {
			case !has || !device.Up:
				return fmt.Errorf("%s of %s has %v (up: %t), the result has %s", lab.IfName, pod.name, device.Addrs,
					device.Up, addr)
			case !reserved[addr.String()]:
				return fmt.Errorf("%s of %s is not reserved", addr, pod.name)
			case slices.Contains(t.addresses, addr):
				return fmt.Errorf("%s was assigned twice", addr)
			case !t.Plugin.Subnet.Contains(addr):
				return fmt.Errorf("%s is not in %s", addr, t.Plugin.Subnet)
			}
			t.addresses = append(t.addresses, addr)
		}
		t.evidence.Attachments.Added++
	}
	if err := t.checkEndpoints(); err != nil {
		return err
	}
	if t.Plugin.Agent {
		if got := t.testbed.agent.adds.Swap(0); got != int64(t.Pods) {
			return fmt.Errorf("the agent did %d of %d %ss", got, t.Pods, verbAdd)
		}
	}
	return t.reach(t.testbed.pods[t.Pods-1])
}

// checkEndpoints checks the eBPF datapath's endpoints and sockets against the plugin's services setting.
func (t *trial) checkEndpoints() error {
	known, err := t.testbed.lab.PluginPods()
	if err != nil {
		return err
	}
	// an endpoint has its sockets enabled too
	packets, sockets := t.Plugin.Endpoints, t.Plugin.HasServices() && !t.Plugin.Endpoints
	switch {
	case !packets && len(known.Endpoints) > 0:
		return fmt.Errorf("the eBPF datapath has %d endpoints, want none", len(known.Endpoints))
	case !sockets && len(known.Sockets) > 0:
		return fmt.Errorf("the eBPF datapath has the sockets of %d pods, want none", len(known.Sockets))
	}
	for _, pod := range t.testbed.pods[:t.Pods] {
		if cookie, err := pod.ns.Cookie(); err != nil || sockets && !slices.Contains(known.Sockets, cookie) {
			return cmp.Or(err, fmt.Errorf("the eBPF datapath lacks the sockets of %s", pod.name))
		}
	}
	for _, addr := range t.addresses {
		if packets && !slices.Contains(known.Endpoints, addr) {
			return fmt.Errorf("the eBPF datapath lacks endpoint %s", addr)
		}
	}
	return nil
}

const reachTimeout = 3 * time.Second // limits a connection, with room for a lost packet

func (t *trial) reach(from *pod) error {
	to := netip.AddrPortFrom(t.Plugin.gatewayAddress(), lab.ServicePort)
	var who []byte
	err := from.ns.Do(func() error {
		conn, err := net.DialTimeout("tcp4", to.String(), reachTimeout)
		if err != nil {
			return err
		}
		defer conn.Close()
		t.evidence.Client = result.Addresses{Local: conn.LocalAddr().String(), Peer: conn.RemoteAddr().String()}
		_ = conn.SetReadDeadline(time.Now().Add(reachTimeout))
		who, err = io.ReadAll(conn)
		return err
	})
	if err != nil {
		return fmt.Errorf("%s cannot reach its gateway: %w", from.name, err)
	}
	if string(who) != t.Plugin.Gateway {
		return fmt.Errorf("%s answered as %q, want %q", to, who, t.Plugin.Gateway)
	}
	t.evidence.Attachments.Reached = fmt.Sprintf("%s (%s)", to.Addr(), who)
	d, err := rtnl.In(from.ns).Device(lab.IfName)
	t.evidence.Devices = []result.DeviceCount{{Host: "pod", Name: lab.IfName, RxPackets: d.RxPackets,
		TxPackets: d.TxPackets}}
	return err
}

func (t *trial) checkRemoved() error {
	for _, pod := range t.testbed.pods[:t.Pods] {
		devices, err := rtnl.In(pod.ns).Devices()
		if err != nil {
			return err
		}
		if len(devices) != t.empty {
			return fmt.Errorf("%s has %d devices after %s, want %d", pod.name, len(devices), verbDel, t.empty)
		}
		t.evidence.Attachments.Removed++
	}
	devices, err := rtnl.In(t.testbed.host).Devices()
	if err != nil {
		return err
	}
	for _, d := range devices {
		switch {
		case slices.Contains(t.host, d.Name):
		case t.first && len(t.kept) == 0:
			t.kept = append(t.kept, d.Name)
		default:
			return fmt.Errorf("the host still has %s %s after %s", d.Kind, d.Name, verbDel)
		}
	}
	files, err := t.pluginFiles()
	if err != nil {
		return err
	}
	for _, file := range files {
		addr, err := netip.ParseAddr(leased(file))
		switch {
		case err == nil && slices.Contains(t.addresses, addr):
			return fmt.Errorf("%s is still reserved after %s", addr, verbDel)
		case !t.first && !slices.Contains(t.files, file):
			return fmt.Errorf("%s left %s after %s", t.Plugin.Program, file, verbDel)
		}
	}
	known, err := t.testbed.lab.PluginPods()
	if left := len(known.Endpoints) + len(known.Sockets); err == nil && left > 0 {
		err = fmt.Errorf("the eBPF datapath still has %d pods after %s", left, verbDel)
	}
	return err
}
