// SPDX-License-Identifier: Apache-2.0

package svc

import (
	"errors"
	"fmt"
	"io"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"mustang/internal/document"
)

// unknownFields tells of fields that objects of Kubernetes do not have, and that are ignored therefore: the first, and how many
// more objects have such. Empty: none.
func unknownFields(file io.Reader) string {
	first, more := "", 0
	// What is wrong otherwise, manifest.Read tells.
	_ = document.Each(file, func(where string, data jsontext.Value) error {
		var o document.Object
		if err := document.Decode(data, &o); err != nil {
			return err
		}
		return document.EachObject(where, o, data, func(_ string, o document.Object, data jsontext.Value) error {
			var into any
			switch o.Kind {
			case "Service":
				into = &corev1.Service{}
			case "EndpointSlice":
				into = &discoveryv1.EndpointSlice{}
			default:
				return nil
			}
			err := json.Unmarshal(data, into, json.RejectUnknownMembers(true))
			switch {
			case !errors.Is(err, json.ErrUnknownName):
			case first == "":
				first = document.OneLine(fmt.Sprintf("%s %s/%s: %v", o.Kind, o.Metadata.Namespace, o.Metadata.Name, document.Explain(err)))
			default:
				more++
			}
			return nil
		})
	})
	if more > 0 {
		return fmt.Sprintf("%s, and %d more objects with unknown fields", first, more)
	}
	return first
}
