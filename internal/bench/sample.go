// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"mustang/internal/lab"
	"mustang/internal/nl"
	"mustang/internal/podlink"
	"mustang/internal/result"
	"mustang/internal/traffic"
)

// sample is one measurement of a row with its evidence.
type sample struct {
	measurement traffic.Measurement
	figure      figure
	evidence    result.Evidence
	// switching is the datapath of the lab's Open vSwitch, if it has one, and
	// acceleration that of its virtual machines.
	switching, acceleration string
}

// variant adds to a path's own variant what the lab turned out to be.
func (s sample) variant(own string) string {
	words := []string{own}
	switch s.switching {
	case podlink.OVSKernel:
		words = append(words, "kernel")
	case podlink.OVSUserSpace:
		words = append(words, "user-space")
	}
	words = append(words, s.acceleration)
	return strings.Join(slices.DeleteFunc(words, func(word string) bool { return word == "" }), " ")
}

// pathError says that the traffic did not take the path that its row claims.
type pathError struct{ findings []string }

func (e *pathError) Error() string {
	return "the evidence does not fit: " + strings.Join(e.findings, "; ")
}

// take measures a cell once by what spec says. When the path is not the one
// claimed, it returns the sample and a [*pathError].
func (s *stand) take(ctx context.Context, c cell, spec traffic.Spec) (sample, error) {
	if s.peer != nil {
		return s.takeToPeer(ctx, c, spec)
	}
	if c.path.plugin != nil {
		p, err := s.pluginStand(ctx, c.path.lab)
		if err != nil {
			return sample{}, err
		}
		return p.take(ctx, c, spec)
	}
	l, err := s.lab(ctx, c.path.lab)
	if err != nil {
		return sample{}, err
	}
	client, _, err := s.ends(ctx, c.path)
	if err != nil {
		return sample{}, err
	}
	return attempt{path: c.path, lab: l, client: client}.take(ctx, spec)
}

// attempt is a sample that is to be taken.
type attempt struct {
	path   path
	client *traffic.Agent
	// lab is where the path is; nil on the way from this machine itself to a peer.
	lab *lab.Lab
	// machine is the namespace of this machine, if its devices are on the path.
	machine *nl.Namespace
}

// count reads the counters of what is on the path.
func (a attempt) count() (counts, error) {
	c, err := takeCounts(a.lab)
	if err == nil && a.machine != nil {
		err = c.add(thisMachine, a.machine)
	}
	return c, err
}

// take runs the client, and compares what is seen of that with the path.
func (a attempt) take(ctx context.Context, spec traffic.Spec) (sample, error) {
	before, err := a.count()
	if err != nil {
		return sample{}, err
	}
	m, err := a.client.Run(ctx, spec)
	if err != nil {
		return sample{}, err
	}
	after, err := a.count()
	if err != nil {
		return sample{}, err
	}
	w := witness{path: a.path, flooded: spec.Rate > proofRate, evidence: after.since(before), measurement: m}
	addresses(&w.evidence, m)
	taken := sample{measurement: m}
	if a.lab == nil {
		w.evidence.Findings = w.fromHere()
	} else {
		if err := a.look(&w, before, after); err != nil {
			return sample{}, err
		}
		w.evidence.Findings = w.findings()
		taken.switching, taken.acceleration = w.switching, a.lab.Acceleration()
	}
	if taken.evidence = w.evidence; len(w.evidence.Findings) > 0 {
		return taken, &pathError{w.evidence.Findings}
	}
	return taken, nil
}

// look adds what the lab knows of a sample.
func (a attempt) look(w *witness, before, after counts) (err error) {
	l, client := a.lab, w.measurement.ClientLocal
	w.switching = l.OVSDatapath()
	w.devices = map[string]string{lab.PodA: l.Device(lab.PodA), lab.PodB: l.Device(lab.PodB)}
	if w.evidence.Connections, err = ownEntries(l, client); err != nil {
		return err
	}
	if w.tracked, w.translated, err = kernelEntries(l, a.path.tracker(), client); err != nil {
		return err
	}
	if a.path.route != nil {
		resolved, err := a.path.route.resolve(l)
		if err != nil {
			return err
		}
		w.route = &resolved
	}
	w.evidence.Hooks, err = w.hooks(l, before, after)
	return err
}

// ownEntries counts the entries of a client's connection in the lab's eBPF
// connection table.
func ownEntries(l *lab.Lab, client netip.AddrPort) (int, error) {
	dp := l.Datapath()
	if dp == nil {
		return 0, nil
	}
	connections, err := dp.Connections()
	if err != nil {
		return 0, fmt.Errorf("read eBPF connections: %w", err)
	}
	n := 0
	for _, connection := range connections {
		if connection.Client == client {
			n++
		}
	}
	return n, nil
}

// tracker is the place in whose connection tracking the path may have an entry.
func (p path) tracker() string {
	switch {
	case p.route != nil && p.route.translatedAt != "":
		return p.route.translatedAt
	case p.lab.Topology == "pod-links":
		return lab.Host
	case p.lab.Topology == podToNetwork:
		return lab.HostB
	}
	return lab.HostA
}

// kernelEntries looks for a client's connection in the connection tracking of a
// place.
func kernelEntries(l *lab.Lab, place string, client netip.AddrPort) (tracked, translated bool, err error) {
	host, err := l.Namespace(place)
	if err != nil {
		return false, false, err
	}
	flows, err := host.Flows()
	if err != nil {
		return false, false, err
	}
	for _, flow := range flows {
		if flow.Orig.Src == client {
			tracked = true
			translated = translated || flow.Reply != nl.Tuple{Src: flow.Orig.Dst, Dst: flow.Orig.Src}
		}
	}
	return tracked, translated, nil
}
