// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"crypto/sha256"
	"encoding/binary"
	"net/netip"
	"reflect"
	"slices"
	"sync"
)

// form is an encoding: equal values of a kind have equal bytes, and different values different bytes.
type form []byte

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

// labels writes 0 for an empty or nil map.
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

var typePrefix = reflect.TypeFor[netip.Prefix]()

// value writes all fields of a value, whose structs and maps are addressable. A nil list equals an empty one.
func (f *form) value(v reflect.Value) {
	switch v.Kind() {
	case reflect.Struct:
		if v.Type() == typePrefix {
			f.prefix(*v.Addr().Interface().(*netip.Prefix))
			return
		}
		for i := range v.NumField() {
			f.value(v.Field(i))
		}
	case reflect.Pointer:
		if f.flag(!v.IsNil()); !v.IsNil() {
			f.value(v.Elem())
		}
	case reflect.Slice:
		f.number(uint64(v.Len()))
		for i := range v.Len() {
			f.value(v.Index(i))
		}
	case reflect.Map:
		f.labels(*v.Addr().Interface().(*map[string]string))
	case reflect.String:
		f.text(v.String())
	case reflect.Bool:
		f.flag(v.Bool())
	default:
		f.number(v.Uint())
	}
}

func (f *form) named(ports []NamedPort) { f.value(reflect.ValueOf(ports)) }

// Digest identifies the content of the policy, including its name.
func (p *Policy) Digest() Digest {
	f := newForm("policy")
	f.value(reflect.ValueOf(p).Elem())
	return f.digest()
}
