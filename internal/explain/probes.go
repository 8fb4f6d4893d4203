// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
	"github.com/cilium/ebpf/link"

	"mustang/internal/lab"
	"mustang/internal/netns"
	"mustang/internal/rtnl"
)

// The object contains no path of the build machine, so that it is reproducible.
//
//go:generate go tool bpf2go -cc clang-19 -strip llvm-strip-19 -target bpfel -cflags "-mcpu=v3 -O2 -g -Wall -Wextra -Werror -Wno-unused-parameter -ffile-prefix-map=../..=." -type event -type kind explain ../../bpf/explain.bpf.c -- -I../../bpf -idirafter /usr/include/x86_64-linux-gnu -idirafter /usr/include/aarch64-linux-gnu

// probe is a tracepoint of the kernel at which a program records events.
type probe struct {
	program, at string
	instead     string // program for kernels that lack the tracepoint
	double      bool   // whether a second copy measures the cost
}

var probes = []probe{
	{program: explainProgSend, at: "tcp_sendmsg_locked", instead: explainProgSendFunction},
	{program: explainProgSent, at: "sock_send_length"},
	{program: explainProgRead, at: "sock_recv_length"},
	{program: explainProgTcp, at: "tcp_probe", double: true},
	{program: explainProgWake, at: "sk_data_ready"},
	{program: explainProgTransmit, at: "net_dev_start_xmit", double: true},
	{program: explainProgQueue, at: "netif_rx"},
	{program: explainProgReceive, at: "netif_receive_skb"},
	{program: explainProgRoute, at: "fib_table_lookup"},
	{program: explainProgRoute6, at: "fib6_table_lookup"},
	{program: explainProgRaise, at: "softirq_raise"},
	{program: explainProgSoftirq, at: "softirq_entry", double: true},
	{program: explainProgSoftirqEnd, at: "softirq_exit"},
	{program: explainProgRun, at: "sched_switch"},
}

type attacher func() (link.Link, error)

// roomPerTransaction is the number of events of a transaction: about sixty of its own, and the machine's softirqs.
const roomPerTransaction = 300

const settle = 200 // uncounted transactions that begin each run

type tracer struct {
	spec   *ebpf.CollectionSpec
	maps   *ebpf.Collection // without programs
	types  *btf.Cache
	loaded []*ebpf.Collection
	// each attaches a program, and doubles a second copy of some.
	each, doubles []attacher
	links         []link.Link
}

// openTracer loads the programs that follow the path. The error is errors.ErrUnsupported if the kernel lacks a probe.
func (r *run) openTracer() (_ *tracer, err error) {
	t := &tracer{types: btf.NewCache()}
	defer func() {
		if err != nil {
			err = errors.Join(err, t.close())
		}
	}()
	if t.spec, err = loadExplain(); err != nil {
		return nil, fmt.Errorf("read embedded object: %w", err)
	}
	t.spec.Maps[explainMapEvents].MaxEntries = uint32((r.perRound() + settle) * roomPerTransaction)
	ports := [2]uint16{r.path.Connect.Port(), r.path.Listen.Port()}
	if err := t.spec.Variables[explainVarPorts].Set(ports); err != nil {
		return nil, err
	}
	maps := t.spec.Copy()
	maps.Programs = nil
	if t.maps, err = ebpf.NewCollection(maps); err != nil {
		return nil, fmt.Errorf("create maps of events: %w", err)
	}
	t.loaded = append(t.loaded, t.maps)
	for i, inode := range r.inodes {
		if err := t.maps.Maps[explainMapNamespaces].Put(uint32(inode), uint8(i+1)); err != nil {
			return nil, err
		}
	}
	if err := t.loadProbes(); err != nil {
		return nil, err
	}
	return t, errors.Join(r.addPrograms(t), r.addHooks(t))
}

func (t *tracer) loadProbes() error {
	kernel, err := t.types.Kernel()
	if err != nil {
		return fmt.Errorf("read the types of this kernel (BTF): %w: %w", errors.ErrUnsupported, err)
	}
	var each, doubles []string
	for _, p := range probes {
		var tracepoint *btf.Typedef
		switch err := kernel.TypeByName("btf_trace_"+p.at, &tracepoint); {
		case err == nil:
		case !errors.Is(err, btf.ErrNotFound):
			return fmt.Errorf("find tracepoint %s: %w", p.at, err)
		case p.instead != "":
			p.program = p.instead
		default:
			return fmt.Errorf("this kernel lacks tracepoint %s: %w", p.at, errors.ErrUnsupported)
		}
		each = append(each, p.program)
		if p.double {
			doubles = append(doubles, p.program)
		}
	}
	if t.each, err = t.loadTracing(each); err != nil {
		return err
	}
	t.doubles, err = t.loadTracing(doubles)
	return err
}

func (t *tracer) loadTracing(names []string) (attachers []attacher, err error) {
	programs, err := t.load(0, names...)
	for _, program := range programs {
		attachers = append(attachers, func() (link.Link, error) {
			return link.AttachTracing(link.TracingOptions{Program: program})
		})
	}
	return attachers, err
}

func (t *tracer) load(number uint8, names ...string) (map[string]*ebpf.Program, error) {
	spec := t.spec.Copy()
	maps.DeleteFunc(spec.Programs, func(name string, _ *ebpf.ProgramSpec) bool { return !slices.Contains(names, name) })
	if err := spec.Variables[explainVarProgram].Set(number); err != nil {
		return nil, err
	}
	shared := maps.Clone(t.maps.Maps)
	delete(shared, ".rodata") // has the number
	loaded, err := ebpf.NewCollectionWithOptions(spec, ebpf.CollectionOptions{MapReplacements: shared, Cache: t.types})
	if err != nil {
		return nil, fmt.Errorf("load programs that trace: %w", err)
	}
	t.loaded = append(t.loaded, loaded)
	return loaded.Programs, nil
}

func (t *tracer) start(programs []attacher) error {
	for _, attach := range programs {
		l, err := attach()
		if err != nil {
			return fmt.Errorf("trace: %w", err)
		}
		t.links = append(t.links, l)
	}
	return t.maps.Variables[explainVarCount].Set(uint32(0))
}

func (t *tracer) stop() (err error) {
	for _, l := range t.links {
		err = errors.Join(err, l.Close())
	}
	t.links = nil
	return err
}

func (t *tracer) events() ([]explainEvent, error) {
	var n uint32
	if err := t.maps.Variables[explainVarCount].Get(&n); err != nil {
		return nil, err
	}
	m := t.maps.Maps[explainMapEvents]
	if n = min(n, m.MaxEntries()); n == 0 {
		return nil, nil
	}
	keys, events := make([]uint32, n), make([]explainEvent, n)
	var cursor ebpf.MapBatchCursor
	got, err := m.BatchLookup(&cursor, keys, events, nil)
	if err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return nil, fmt.Errorf("read events: %w", err)
	}
	return events[:got], nil
}

func (t *tracer) close() error {
	err := t.stop()
	for _, c := range t.loaded {
		c.Close()
	}
	return err
}

// attachment is the first BPF program at a hook of a device.
type attachment struct {
	ns      *netns.Namespace
	index   int // of the device
	hook    ebpf.AttachType
	id      ebpf.ProgramID
	name    string
	program *ebpf.Program
}

func (r *run) eachPlace(do func(i int, ns *netns.Namespace) error) error {
	for i, place := range r.places {
		ns, err := r.lab.Namespace(place)
		if err == nil {
			err = do(i, ns)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", place, err)
		}
	}
	return nil
}

func (r *run) findAttachments() error {
	return r.eachPlace(func(_ int, ns *netns.Namespace) error {
		devices, err := rtnl.In(ns).Devices()
		if err != nil {
			return err
		}
		return ns.Do(func() error {
			for _, d := range devices {
				hooks := []ebpf.AttachType{ebpf.AttachTCXIngress, ebpf.AttachTCXEgress}
				if d.Kind == "netkit" {
					hooks = append(hooks, ebpf.AttachNetkitPrimary, ebpf.AttachNetkitPeer)
				}
				for _, hook := range hooks {
					if err := r.addAttachment(attachment{ns: ns, index: d.Index, hook: hook}); err != nil {
						return fmt.Errorf("BPF program of %s: %w", d.Name, err)
					}
				}
			}
			return nil
		})
	})
}

func (r *run) addAttachment(a attachment) (err error) {
	// If the hook does not exist, the kernel fails with various errors.
	query, err := link.QueryPrograms(link.QueryOptions{Target: a.index, Attach: a.hook})
	if err != nil || len(query.Programs) == 0 {
		return nil
	}
	a.id = query.Programs[0].ID
	if a.program, err = ebpf.NewProgramFromID(a.id); err != nil {
		return err
	}
	info, err := a.program.Info()
	if err == nil {
		a.name = info.Name
	}
	r.attached = append(r.attached, a)
	return err
}

func (r *run) addPrograms(t *tracer) error {
	for number, a := range r.attached {
		programs, err := t.load(uint8(number), explainProgProgramStart, explainProgProgramEnd)
		if err != nil {
			return err
		}
		t.each = append(t.each,
			inside(a.ns, func() (link.Link, error) { return a.attach(programs[explainProgProgramStart], link.Head()) }),
			inside(a.ns, func() (link.Link, error) { return a.attach(programs[explainProgProgramEnd], link.Tail()) }))
	}
	return nil
}

func inside(ns *netns.Namespace, attach attacher) attacher {
	return func() (link.Link, error) { return netns.Get(ns, attach) }
}

func (a attachment) attach(p *ebpf.Program, anchor link.Anchor) (link.Link, error) {
	if a.hook == ebpf.AttachNetkitPrimary || a.hook == ebpf.AttachNetkitPeer {
		return link.AttachNetkit(link.NetkitOptions{Interface: a.index, Program: p, Attach: a.hook, Anchor: anchor})
	}
	return link.AttachTCX(link.TCXOptions{Interface: a.index, Program: p, Attach: a.hook, Anchor: anchor})
}

// hookNames are the netfilter hooks of the IP layer, by number.
var hookNames = []string{"prerouting", "input", "forward", "output", "postrouting"}

// addHooks adds programs before and after the functions of netfilter hooks with chains, in all places.
func (r *run) addHooks(t *tracer) error {
	family, protocol := "ip", link.NetfilterProtoIPv4
	if r.path.Connect.Addr().Is6() {
		family, protocol = "ip6", link.NetfilterProtoIPv6
	}
	programs, err := t.load(0, explainProgHook, explainProgHookEnd)
	if err != nil {
		return err
	}
	priorities := map[string]int32{explainProgHook: math.MinInt32 + 1, explainProgHookEnd: math.MaxInt32 - 1}
	return r.eachPlace(func(i int, ns *netns.Namespace) error {
		chains, err := r.lab.Hooks(r.places[i])
		if err != nil {
			return err
		}
		for number, name := range hookNames {
			at := func(c lab.HookChain) bool { return c.Hook == name && (c.Family == family || c.Family == "inet") }
			if !slices.ContainsFunc(chains, at) {
				continue
			}
			for program, priority := range priorities {
				t.each = append(t.each, inside(ns, func() (link.Link, error) {
					return link.AttachNetfilter(link.NetfilterOptions{Program: programs[program], ProtocolFamily: protocol,
						Hook: link.NetfilterInetHook(number), Priority: priority})
				}))
			}
		}
		return nil
	})
}
