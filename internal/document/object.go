// SPDX-License-Identifier: Apache-2.0

package document

import (
	"fmt"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
)

// Object holds the common fields of Kubernetes objects.
type Object struct {
	Kind       string   `json:"kind"`
	APIVersion string   `json:"apiVersion"`
	Metadata   Metadata `json:"metadata"`
}

// Metadata identifies an object of a kind.
type Metadata struct {
	Name      string            `json:"name"`
	Namespace string            `json:"namespace"`
	Labels    map[string]string `json:"labels"`
	// Created is the creation time in RFC 3339: a later time is greater.
	Created string `json:"creationTimestamp"`
	// Version is the cluster's resource version, which each change of the object changes.
	Version string `json:"resourceVersion"`
}

// EachObject calls a function for an object, or for each item of a list of objects, until it returns an error.
func EachObject(where string, o Object, data jsontext.Value, add func(string, Object, jsontext.Value) error) error {
	kind, isList := strings.CutSuffix(o.Kind, "List")
	if !isList {
		return add(where, o, data)
	}
	var list struct {
		Items []jsontext.Value `json:"items"`
	}
	if err := Decode(data, &list); err != nil {
		return fmt.Errorf("%s: %s: %w", where, o.Kind, err)
	}
	for i, item := range list.Items {
		where := fmt.Sprintf("%s: items[%d]", where, i)
		of := Object{}
		if err := Decode(item, &of); err != nil {
			return fmt.Errorf("%s: %w", where, err)
		}
		if of.Kind == "" && kind != "" { // the API leaves it out in a ServiceList
			of.Kind, of.APIVersion = kind, o.APIVersion
		}
		if err := EachObject(where, of, item, add); err != nil { // a list may have lists
			return err
		}
	}
	return nil
}
