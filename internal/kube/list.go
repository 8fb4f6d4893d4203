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
	var l struct {
		Kind       string           `json:"kind"`
		APIVersion string           `json:"apiVersion"`
		Metadata   *metav1.ListMeta `json:"metadata"`
		Items      items            `json:"items"`
	}
	l.Metadata = head
	l.Items.each = func(value jsontext.Value) error {
		if l.Kind != "" && !k.lists(l.Kind) { // the kind of a list of custom resources contains the kind of its items
			return errNoList
		}
		if !bytes.HasPrefix(value, []byte(`{"metadata"`)) { // it names its kind
			return item(bytes.Clone(value))
		}
		kind := fmt.Appendf(nil, `{"kind":%q,"apiVersion":%q,`, strings.TrimSuffix(l.Kind, "List"), l.APIVersion)
		return item(append(kind, value[1:]...))
	}
	err := document.Explain(json.UnmarshalRead(r, &l))
	if err == nil && (!l.Items.listed || !k.lists(l.Kind)) {
		err = errNoList
	}
	return err
}

type items struct {
	listed bool
	each   func(jsontext.Value) error
}

// UnmarshalJSONFrom calls each for each item.
func (l *items) UnmarshalJSONFrom(d *jsontext.Decoder) error {
	l.listed = true
	token, err := d.ReadToken()
	if err != nil || token.Kind() == 'n' { // null: Go writes an empty list as null
		return err
	}
	if token.Kind() != '[' {
		return errNoList
	}
	for d.PeekKind() != ']' {
		value, err := d.ReadValue()
		if err == nil {
			err = l.each(value)
		}
		if err != nil {
			return err
		}
	}
	_, err = d.ReadToken()
	return err
}

func (k Kind) lists(list string) bool {
	one, is := strings.CutSuffix(list, "List")
	plural, _ := meta.UnsafeGuessKindToResource(schema.GroupVersionKind{Kind: one})
	return is && plural.Resource == k.Resource
}
