// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"mustang/internal/document"
)

// stream lists a kind, hands out each object as it is read, and returns all names. Only one object is in memory.
func (c *Client) stream(ctx context.Context, k Kind, o metav1.ListOptions,
	on func(Event)) (*metav1.PartialObjectMetadataList, error) {
	path := "/apis/" + k.Group + "/" + k.Version + "/" + k.Resource
	if k.Group == "" {
		path = "/api/" + k.Version + "/" + k.Resource
	}
	body, err := c.rest.Get().AbsPath(path).SpecificallyVersionedParams(&o, metav1.ParameterCodec,
		schema.GroupVersion{Version: "v1"}).Stream(ctx)
	if err != nil {
		return nil, err
	}
	defer body.Close()
	names := &metav1.PartialObjectMetadataList{}
	err = eachItem(body, k, &names.ListMeta, func(item jsontext.Value) error {
		var head document.Object
		if err := document.Decode(item, &head); err != nil {
			return err
		}
		m := head.Metadata
		if m.Name == "" {
			return errNoList
		}
		names.Items = append(names.Items, metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Namespace: m.Namespace,
			Name: m.Name}})
		on(Event{k, m.Namespace, m.Name, item})
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("list of %s: %w", k.Resource, err)
	}
	return names, nil
}

// errNoList is the error of an answer that is not a list: objects missing from it are not gone.
var errNoList = errors.New("not a list")

// eachItem calls a function for each item of a list, with its kind and version. It refuses a proxy's answer.
func eachItem(r io.Reader, k Kind, head *metav1.ListMeta, item func(jsontext.Value) error) error {
	d := jsontext.NewDecoder(r)
	if err := open(d, '{'); err != nil {
		return err
	}
	var kind, version string
	listed := false
	for d.PeekKind() != '}' {
		name, err := d.ReadToken()
		if err != nil {
			return err
		}
		switch name.String() {
		case "kind":
			err = json.UnmarshalDecode(d, &kind)
		case "apiVersion":
			err = json.UnmarshalDecode(d, &version)
		case "metadata":
			err = json.UnmarshalDecode(d, head)
		case "items":
			listed = true
			if kind != "" && !k.lists(kind) { // lists of custom resources name it after the items
				return errNoList
			}
			err = items(d, fmt.Appendf(nil, `{"kind":%q,"apiVersion":%q,`, strings.TrimSuffix(kind, "List"), version), item)
		default:
			err = d.SkipValue()
		}
		if err != nil {
			return err
		}
	}
	if !listed || !k.lists(kind) {
		return errNoList
	}
	return nil
}

// items reads the items of a list, and begins those without a kind with head.
func items(d *jsontext.Decoder, head []byte, item func(jsontext.Value) error) error {
	if d.PeekKind() == 'n' { // Go writes an empty list so
		return d.SkipValue()
	}
	if err := open(d, '['); err != nil {
		return err
	}
	for d.PeekKind() != ']' {
		value, err := d.ReadValue()
		if err != nil {
			return err
		}
		if bytes.HasPrefix(value, []byte(`{"metadata"`)) {
			value = append(bytes.Clone(head), value[1:]...)
		} else {
			value = bytes.Clone(value)
		}
		if err := item(value); err != nil {
			return err
		}
	}
	_, err := d.ReadToken()
	return err
}

func open(d *jsontext.Decoder, bracket jsontext.Kind) error {
	token, err := d.ReadToken()
	if err == nil && token.Kind() != bracket {
		err = errNoList
	}
	return err
}

// lists reports whether a list of that name is one of the kind.
func (k Kind) lists(list string) bool {
	one, is := strings.CutSuffix(list, "List")
	plural, _ := meta.UnsafeGuessKindToResource(schema.GroupVersionKind{Kind: one})
	return is && plural.Resource == k.Resource
}
