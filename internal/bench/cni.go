// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"errors"
	"net/netip"
	"strings"
	"time"

	"mustang/internal/podlink"
	"mustang/internal/result"
	"mustang/internal/traffic"
)

// How often a plugin is called in one sample: one call at a time, and at once.
const (
	callsInTurn      = 20
	callsAtOnce      = 100
	quickCallsInTurn = 10
	quickCallsAtOnce = 20
)

// cni compares how long CNI plugins take to attach a pod and to detach it, called
// as a container runtime calls them.
func cni() Suite {
	s := Suite{Name: "cni", Doc: "how fast CNI plugins attach and detach a pod, one at a time and 100 at once"}
	for _, flows := range []int{1, callsAtOnce} {
		s.workloads = append(s.workloads, workload{name: result.WorkloadCNIAdd, flows: flows}, workload{name: result.WorkloadCNIDel, flows: flows})
	}
	subnet := byte(80)
	add := func(id, link string, p plugin) path {
		// The CNI spec has no + in names.
		p.network = strings.ReplaceAll("bench-"+id, "+", "-")
		p.subnet = netip.PrefixFrom(netip.AddrFrom4([4]byte{10, subnet, 0, 0}), 16)
		subnet++
		out := path{id: id, link: link, target: result.TargetNone, via: result.ViaNone, plugin: &p, lab: nodeLab()}
		if p.serves() {
			out.variant = "services " + p.services
		}
		return out
	}
	s.addBaseline(add("bridge", "bridge", referenceBridge()))
	s.paths = append(s.paths, add("ptp", "veth", referencePTP()), add("macvlan", "macvlan", referenceMacvlan()))
	for _, link := range []string{"veth", "bridge", "macvlan"} {
		plain := add("mustang-"+link, link, mustangPlugin(link, servicesOff))
		sockets := add("mustang-"+link+"+socket", link, mustangPlugin(link, servicesSocket))
		sockets.note = "the pod reaches services too, by its sockets, as it does by default"
		both := add("mustang-"+link+"+ebpf", link, mustangPlugin(link, servicesBoth))
		both.note = "the pod reaches services too: eBPF programs on its link and at its sockets"
		s.paths = append(s.paths, plain, sockets, both)
	}
	for _, p := range s.paths[2:] {
		s.compare(p.id, "bridge")
	}
	s.compare("mustang-veth", "ptp")
	s.compare("mustang-macvlan", "macvlan")
	for _, link := range []string{"veth", "bridge", "macvlan"} {
		s.compare("mustang-"+link+"+socket", "mustang-"+link)
		s.compare("mustang-"+link+"+ebpf", "mustang-"+link)
	}
	return s
}

// errNotCounted says why calls have no place among counted instructions.
var errNotCounted = errors.New("calls of plugins are timed, their instructions are not counted")

// calls reports whether the suite's rows are calls of plugins.
func (s Suite) calls() bool { return len(s.paths) > 0 && s.paths[0].plugin != nil }

// timed reports whether any sample lasts as long as the options say.
func (o Options) timed() bool {
	for _, s := range o.Suites {
		if !s.calls() {
			return !o.counts()
		}
	}
	return false
}

// batchTime is about how long half a batch of calls takes, for the estimate of the
// time left.
const batchTime = time.Second

// each is about how long a sample of rows takes.
func (o Options) each(rows []*tally) time.Duration {
	if len(rows) > 0 && rows[0].cell.path.plugin != nil {
		return batchTime
	}
	return o.Duration + o.Warmup + overhead
}

// callWorkloads are those of a suite of calls.
func (o Options) callWorkloads(s Suite) []workload {
	var out []workload
	for _, w := range s.workloads {
		if o.Quick && w.flows > 1 {
			w.flows = quickCallsAtOnce
		}
		out = append(out, w)
	}
	return out
}

// callSpec says how many calls make a sample of a cell.
func (o Options) callSpec(c cell) traffic.Spec {
	spec := traffic.Spec{Workload: c.workload.name, Flows: c.workload.flows, Limit: uint64(c.workload.flows)}
	switch {
	case c.workload.flows > 1:
	case o.Quick:
		spec.Limit = quickCallsInTurn
	default:
		spec.Limit = callsInTurn
	}
	return spec
}

// probeLink returns why this kernel can't have the link that a plugin makes.
func probeLink(name string) error {
	mode, err := podlink.Lookup(name)
	if err != nil {
		return err
	}
	return mode.Probe()
}
