// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"fmt"
	"math"
	"slices"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"

	"mustang/internal/lab"
	"mustang/internal/netns"
	"mustang/internal/rtnl"
)

// attachment is the first BPF program at a hook of a device.
type attachment struct {
	ns      *netns.Namespace
	index   int // of the device
	hook    ebpf.AttachType
	id      ebpf.ProgramID
	name    string
	program *ebpf.Program
}

// eachPlace calls a function for each place of the lab, with its number and namespace.
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

// addAttachment adds the first program of a hook of the calling thread's namespace, if it has one.
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

// addPrograms adds programs before and after the BPF programs of devices.
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

// inside returns an attacher that works in a namespace.
func inside(ns *netns.Namespace, attach attacher) attacher {
	return func() (attached link.Link, err error) {
		err = ns.Do(func() error {
			attached, err = attach()
			return err
		})
		return attached, err
	}
}

// attach attaches a program before or behind an attachment.
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
