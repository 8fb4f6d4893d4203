// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"crypto/sha256"
	"encoding/binary"
	"net/netip"
	"slices"
	"sync"
)

// form is an encoding: equal values of a kind have equal bytes, and different values different bytes.
type form []byte

// forms are digested forms for reuse.
var forms = sync.Pool{New: func() any { return new(form) }}

func newForm(kind string) *form {
	f := forms.Get().(*form)
	*f = append(append((*f)[:0], kind...), 0)
	return f
}

// digest returns the digest of the form, which must not be used afterwards.
func (f *form) digest() Digest {
	sum := sha256.Sum256(*f)
	forms.Put(f)
	return Digest(sum[:16])
}

func (f *form) bytes(b ...byte) { *f = append(*f, b...) }

func (f *form) number(n uint64) { *f = binary.AppendUvarint(*f, n) }

func (f *form) flag(b bool) {
	if b {
		f.number(1)
	} else {
		f.number(0)
	}
}

func (f *form) text(s string) {
	f.number(uint64(len(s)))
	*f = append(*f, s...)
}

func (f *form) prefix(p netip.Prefix) {
	f.number(uint64(p.Addr().BitLen()))
	f.number(uint64(p.Bits()))
	*f = append(*f, p.Addr().AsSlice()...)
}

// labels writes 0 if there are no labels, for a nil map too.
func (f *form) labels(m map[string]string) {
	keys := make([]string, 0, 8)
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	f.number(uint64(len(keys)))
	for _, k := range keys {
		f.text(k)
		f.text(m[k])
	}
}

func (f *form) selector(s Selector) {
	f.labels(s.Labels)
	f.number(uint64(len(s.Requirements)))
	for _, r := range s.Requirements {
		f.text(r.Key)
		f.text(r.Operator)
		f.number(uint64(len(r.Values)))
		for _, v := range r.Values {
			f.text(v)
		}
	}
}

func (f *form) pods(s PodSelector) {
	f.selector(s.Namespaces)
	f.selector(s.Pods)
}

func (f *form) named(ports []NamedPort) {
	f.number(uint64(len(ports)))
	for _, p := range ports {
		f.text(p.Name)
		*f = binary.BigEndian.AppendUint16(append(*f, byte(p.Protocol)), p.Port)
	}
}

func (f *form) block(b *Block) {
	f.prefix(b.CIDR)
	f.number(uint64(len(b.Except)))
	for _, e := range b.Except {
		f.prefix(e)
	}
}

func (f *form) rule(r *Rule) {
	f.text(r.Name)
	f.number(uint64(r.Action))
	f.number(uint64(len(r.Peers)))
	for i := range r.Peers {
		switch p := &r.Peers[i]; {
		case p.Pods != nil:
			f.number(1)
			f.pods(*p.Pods)
		case p.Nodes != nil:
			f.number(2)
			f.selector(*p.Nodes)
		case p.Block != nil:
			f.number(3)
			f.block(p.Block)
		default:
			f.number(0)
		}
	}
	f.number(uint64(len(r.Ports)))
	for _, p := range r.Ports {
		*f = binary.BigEndian.AppendUint16(append(*f, byte(p.Protocol)), p.First)
		*f = binary.BigEndian.AppendUint16(*f, p.Last)
		f.text(p.Name)
	}
}

// Digest identifies the content of the policy, including its name.
func (p *Policy) Digest() Digest {
	f := newForm("policy")
	f.number(uint64(p.Tier))
	f.number(uint64(p.Priority))
	f.text(p.Namespace)
	f.text(p.Name)
	f.pods(p.Subject)
	for _, isolates := range []bool{p.IsolatesIngress, p.IsolatesEgress, p.JudgesNode} {
		f.flag(isolates)
	}
	for _, rules := range [][]Rule{p.Ingress, p.Egress} {
		f.number(uint64(len(rules)))
		for i := range rules {
			f.rule(&rules[i])
		}
	}
	return f.digest()
}
