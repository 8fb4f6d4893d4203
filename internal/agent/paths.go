// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"mustang/internal/agent/status"
	"mustang/internal/kube"
	"mustang/internal/netns"
	"mustang/internal/netstat"
	"mustang/internal/pathprobe"
)

// Paths configures checks of the paths to other nodes.
type Paths struct {
	Host  *netns.Namespace // the node's
	Every time.Duration    // the interval of checks; 0: the agent checks none, and does not answer other agents
}

// leastWrong is the number of wrong checksums in an interval that is a fault: single ones have many causes.
const leastWrong = 10

// paths are the results of checks.
type paths struct {
	faults map[string]pathFault // by node; wrong checksums that arrive are a fault of this node
	queue  []string             // the nodes that are not checked yet, in random order
	faulty bool                 // whether the last check preferred a node with a fault
	count  func(result string, faults int)
	moved  chan struct{} // has an item after a change of this node's addresses
}

type pathFault struct {
	status.Path
	result string
}

// pathReasons are the reasons of events, by result.
var pathReasons = map[string]string{status.PathSmallMTU: "PathMTU", status.PathUnreachable: "PathUnreachable",
	status.PathChecksums: "PathChecksums"}

func (p *paths) list() (all []status.Path) {
	for _, node := range slices.Sorted(maps.Keys(p.faults)) {
		all = append(all, p.faults[node].Path)
	}
	return all
}

// next returns the node to check: in turn one with a fault, and one of all other nodes; empty: there is none.
func (p *paths) next(of map[string]kube.Node, self string) string {
	maps.DeleteFunc(p.faults, func(node string, _ pathFault) bool { _, there := of[node]; return !there })
	p.faulty = !p.faulty
	for node := range p.faults { // in random order
		if p.faulty && node != self {
			return node
		}
	}
	gone := func(node string) bool { _, there := of[node]; return !there || node == self }
	if p.queue = slices.DeleteFunc(p.queue, gone); len(p.queue) == 0 {
		p.queue = slices.DeleteFunc(slices.Collect(maps.Keys(of)), gone)
		rand.Shuffle(len(p.queue), func(i, j int) { p.queue[i], p.queue[j] = p.queue[j], p.queue[i] })
	}
	if len(p.queue) == 0 {
		return ""
	}
	node := p.queue[0]
	p.queue = p.queue[1:]
	return node
}

// note records the result of a check, and reports whether it is a new fault. An empty result is not counted.
func (p *paths) note(node, result, finding string) (isNew bool) {
	switch had := p.faults[node]; {
	case result == status.PathNoAgent && had.result != status.PathUnreachable: // nothing new is known about the path
	case finding == "":
		delete(p.faults, node)
	default:
		if isNew = had.result != result; isNew {
			had.Since = time.Now()
		}
		p.faults[node] = pathFault{status.Path{Node: node, Finding: finding, Since: had.Since}, result}
	}
	p.count(result, len(p.faults))
	return isNew
}

// checkPaths answers checks of other agents, and checks one path in each interval, until the context ends.
func (a *Agent) checkPaths(ctx context.Context) {
	a.mu.Lock()
	a.paths.faults, a.paths.count = map[string]pathFault{}, a.State.CountPaths()
	a.mu.Unlock()
	wrong, err := a.wrongChecksums()
	if err != nil {
		a.Log.Warn("no check of checksums", "error", err)
	}
	var at netip.Addr
	var answers sync.WaitGroup
	var failed atomic.Bool
	stop := func() {}
	defer func() { stop(); answers.Wait() }()
	next := time.NewTimer(rand.N(a.Paths.Every)) // agents that start together check at different times
	defer next.Stop()
	for ctx.Err() == nil {
		a.mu.Lock()
		own := append(slices.Clone(a.addresses), netip.Addr{})[0]
		a.mu.Unlock()
		if own != at || failed.Swap(false) {
			stop()
			answers.Wait()
			listening, cancel := context.WithCancel(ctx)
			at, stop = own, cancel
			answers.Go(func() { failed.Store(a.answerPaths(listening, own)) })
		}
		select {
		case <-ctx.Done():
		case <-a.paths.moved:
		case <-next.C:
			a.checkPath(ctx)
			if err == nil {
				wrong = a.checkChecksums(wrong)
			}
			next.Reset(a.Paths.Every)
		}
	}
}

// answerPaths answers checks of other agents at an address until the context ends, and reports whether this failed.
func (a *Agent) answerPaths(ctx context.Context, at netip.Addr) bool {
	if !at.IsValid() {
		return false
	}
	o := pathprobe.Options{Host: a.Paths.Host, At: netip.AddrPortFrom(at, pathprobe.DefaultPort)}
	err := pathprobe.Answer(ctx, o, a.isNode)
	if err != nil {
		a.Log.Warn("no answers to path checks of other nodes", "error", err)
	}
	return err != nil
}

// isNode reports whether a Node object has an address.
func (a *Agent) isNode(addr netip.Addr) bool {
	addresses := a.nodes.addresses.Load()
	if addresses == nil {
		a.mu.Lock()
		defer a.mu.Unlock()
		addresses = &map[netip.Addr]bool{}
		for _, n := range a.nodes.of {
			for _, addr := range n.Addresses {
				(*addresses)[addr] = true
			}
		}
		a.nodes.addresses.Store(addresses)
	}
	return (*addresses)[addr]
}

// checkPath checks the path to the next node.
func (a *Agent) checkPath(ctx context.Context) {
	a.mu.Lock()
	node := a.paths.next(a.nodes.of, a.Node)
	others, at := a.nodes.of[node].Addresses, slices.Clone(a.addresses)
	a.mu.Unlock()
	for _, peer := range others[:min(1, len(others))] {
		i := slices.IndexFunc(at, func(own netip.Addr) bool { return own.Is4() == peer.Is4() })
		if i < 0 {
			continue
		}
		path, err := pathprobe.ProbeMTU(ctx, pathprobe.Options{Host: a.Paths.Host, From: at[i],
			At: netip.AddrPortFrom(peer, pathprobe.DefaultPort)})
		if ctx.Err() != nil {
			return
		}
		small := path.SmallMTU(fmt.Sprintf("%s (%v)", node, peer))
		switch {
		case errors.Is(err, unix.ECONNREFUSED):
			a.notePath(node, status.PathNoAgent, "")
		case err != nil:
			a.notePath(node, status.PathUnreachable, fmt.Sprintf("%s: %v", node, err))
		case small != "":
			a.notePath(node, status.PathSmallMTU, small)
		default:
			a.notePath(node, status.PathOK, "")
		}
	}
}

// checkChecksums compares wrong checksums that the kernel has counted with an earlier number, and returns the number.
func (a *Agent) checkChecksums(before uint64) uint64 {
	now, err := a.wrongChecksums()
	switch {
	case err != nil:
		return before
	case now < before+leastWrong: // a part of the counters can be missing
		a.notePath(a.Node, "", "")
	default:
		a.notePath(a.Node, status.PathChecksums, fmt.Sprintf("%d packets arrived with a wrong TCP or UDP checksum: "+
			"checksum offload may be broken on other nodes, or a machine sends such packets; mustang agent preflight --peer "+
			"finds the node", now-before))
	}
	return now
}

// wrongChecksums counts packets to the node itself, among them VXLAN packets.
func (a *Agent) wrongChecksums() (uint64, error) {
	tcp, udp, err := netstat.ReadWrongChecksums(a.Paths.Host)
	return tcp + udp, err
}

func (a *Agent) notePath(node, result, finding string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.paths.note(node, result, finding) {
		a.warnings.add(kube.Warning{Kind: kube.Nodes, Name: a.Node, Reason: pathReasons[result], Text: finding})
	}
}
