// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"mustang/internal/lab"
	"mustang/internal/nl"
	"mustang/internal/result"
	"mustang/internal/traffic"
)

// pluginStand is a lab that plugins run in, with the pods that they attach.
type pluginStand struct {
	lab      *lab.Lab
	host     *nl.Namespace
	dirs     lab.PluginDirs
	pods     []*pod
	watch    *traffic.MachineWatch
	answer   []net.Listener
	proven   map[*plugin]proof
	reserve  map[batchKey]sample
	gateways map[*plugin]bool
	batches  int
}

// pod is a network namespace that plugins attach.
type pod struct {
	name string
	ns   *nl.Namespace
}

// proof is what came of trying a plugin out.
type proof struct {
	kept []string
	err  error
}

// batchKey names the samples of one batch: ADD and DEL of the same pods are measured
// in one go, and the other one's sample waits for its turn in the round.
type batchKey struct {
	id, workload string
	flows        int
}

// pluginStand returns the stand for plugins, made when it is first asked for.
func (s *stand) pluginStand(ctx context.Context, o lab.Options) (_ *pluginStand, err error) {
	if s.plugins != nil {
		return s.plugins, nil
	}
	l, err := s.lab(ctx, o)
	if err != nil {
		return nil, err
	}
	p := &pluginStand{
		lab: l, dirs: l.PluginDirs(), proven: map[*plugin]proof{}, reserve: map[batchKey]sample{}, gateways: map[*plugin]bool{},
	}
	defer func() {
		if err != nil {
			p.close()
		}
	}()
	if p.host, err = l.Namespace(lab.Host); err != nil {
		return nil, err
	}
	if p.watch, err = traffic.WatchMachine(); err != nil {
		return nil, err
	}
	for _, place := range []string{lab.Host, lab.Outside} {
		if err := p.listen(place); err != nil {
			return nil, err
		}
	}
	var where unix.Statfs_t
	if unix.Statfs(p.dirs.State, &where) == nil && where.Type == unix.TMPFS_MAGIC {
		s.remarks[o] = "reserved addresses were kept in memory (tmpfs), not on a disk"
	}
	s.plugins = p
	return p, nil
}

// close ends what is not the lab's.
func (p *pluginStand) close() {
	for _, listener := range p.answer {
		_ = listener.Close()
	}
	if p.watch != nil {
		p.watch.Close()
	}
}

// endPlugins lets go of what is not the lab's.
func (s *stand) endPlugins() {
	if s.plugins != nil {
		s.plugins.close()
		s.plugins = nil
	}
}

// listen answers connections to a place with the place's name.
func (p *pluginStand) listen(place string) error {
	ns, err := p.lab.Namespace(place)
	if err != nil {
		return err
	}
	return ns.Do(func() error {
		listener, err := net.Listen("tcp4", net.JoinHostPort("0.0.0.0", strconv.Itoa(lab.ServicePort)))
		if err != nil {
			return err
		}
		p.answer = append(p.answer, listener)
		go func() {
			for {
				conn, err := listener.Accept()
				if err != nil {
					return
				}
				_, _ = conn.Write([]byte(place))
				_ = conn.Close()
			}
		}()
		return nil
	})
}

// ready gives the stand so many pods, and the plugin its gateway where that is
// beyond the uplink.
func (p *pluginStand) ready(c *plugin, pods int) error {
	for len(p.pods) < pods {
		name := fmt.Sprintf("pod-%d", len(p.pods)+1)
		ns, err := p.lab.AddPod(name)
		if err != nil {
			return err
		}
		p.pods = append(p.pods, &pod{name, ns})
	}
	if c.gateway != lab.Outside || p.gateways[c] {
		return nil
	}
	ns, err := p.lab.Namespace(lab.Outside)
	if err != nil {
		return err
	}
	p.gateways[c] = true
	address := netip.PrefixFrom(c.gatewayAddress(), c.subnet.Bits())
	return ns.Configure(lab.OutsideIfName, nl.DeviceConfig{Up: true, Addresses: []netip.Prefix{address}})
}

// take measures a cell once. One call alone proves that the plugin does what it is
// to do.
func (p *pluginStand) take(ctx context.Context, c cell, spec traffic.Spec) (sample, error) {
	if spec.Limit == 1 {
		return sample{}, p.prove(ctx, c.path.plugin)
	}
	key := batchKey{c.path.id, c.workload.name, c.workload.flows}
	if waiting, ok := p.reserve[key]; ok {
		delete(p.reserve, key)
		return waiting, nil
	}
	t := trial{stand: p, plugin: c.path.plugin, pods: int(spec.Limit), atOnce: c.workload.flows > 1}
	added, removed, err := t.run(ctx)
	if err != nil {
		return added, err
	}
	add, del := key, key
	add.workload, del.workload = result.WorkloadCNIAdd, result.WorkloadCNIDel
	p.reserve[add], p.reserve[del] = added, removed
	mine := p.reserve[key]
	delete(p.reserve, key)
	return mine, nil
}

// prove attaches a pod and detaches it, twice: the first time may leave a device on
// the host that all later ones share, the second time must leave nothing.
func (p *pluginStand) prove(ctx context.Context, c *plugin) error {
	if known, ok := p.proven[c]; ok {
		return known.err
	}
	var kept []string
	for i := range 2 {
		t := trial{stand: p, plugin: c, pods: 1, first: i == 0}
		if _, _, err := t.run(ctx); err != nil {
			if ctx.Err() == nil {
				p.proven[c] = proof{err: err}
			}
			return err
		}
		kept = append(kept, t.kept...)
	}
	p.proven[c] = proof{kept: kept}
	return nil
}

// cleanTimeout is how long it may take to clear up after a plugin.
const cleanTimeout = time.Minute

// clean detaches pods after a failure, and replaces them, so that other plugins find
// them empty.
func (p *pluginStand) clean(t *trial) error {
	ctx, cancel := context.WithTimeout(context.Background(), cleanTimeout)
	defer cancel()
	var errs []error
	for i, c := range t.dels {
		_ = p.host.Do(func() error { return c.run(ctx) })
		pod := p.pods[i]
		errs = append(errs, p.lab.DeletePod(pod.name))
		ns, err := p.lab.AddPod(pod.name)
		if err != nil {
			return errors.Join(append(errs, err)...)
		}
		pod.ns = ns
	}
	return errors.Join(errs...)
}
