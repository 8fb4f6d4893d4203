// SPDX-License-Identifier: Apache-2.0

package netconf

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"strings"

	"github.com/containernetworking/cni/pkg/types"

	"mustang/internal/policy"
)

// Keys of CNI_ARGS. Runtimes of Kubernetes pass all except LABELS.
const (
	argNamespace = "K8S_POD_NAMESPACE"
	argPod       = "K8S_POD_NAME"
	argUID       = "K8S_POD_UID"
	argLabels    = "LABELS"
)

const defaultNamespace = "default"
const maxLabels = 64

// labels decodes the labels of an attachment from key args, in the form of the CNI conventions.
func (d *decoder) labels(raw json.RawMessage) map[string]string {
	var args, cni map[string]json.RawMessage
	var list []struct{ Key, Value string }
	if json.Unmarshal(raw, &args) != nil || json.Unmarshal(args["cni"], &cni) != nil || cni["labels"] == nil {
		return nil
	}
	if err := json.Unmarshal(cni["labels"], &list); err != nil {
		d.fail(Invalidf("args.cni.labels: want an array of objects with key and value, got %s", excerpt(cni["labels"])))
	}
	labels := map[string]string{}
	for _, l := range list {
		labels[l.Key] = l.Value
	}
	return labels
}

// validatePolicies refuses policy settings for pods whose programs do not enforce policies.
func (c Config) validatePolicies() error {
	selects := c.Namespace != "" || len(c.Labels) > 0
	switch {
	case c.Policies == policiesOff && selects:
		return Invalidf("policies: with off, no policy selects a pod by namespace or labels")
	case (selects || c.Policies == policiesOn || c.AwaitsAgent()) && c.Services == ServicesOff:
		return Invalidf("services: with off, pods lack the programs that enforce policies, which policies, namespace or " +
			"labels need")
	}
	if err := (&policy.Pod{Namespace: cmp.Or(c.Namespace, defaultNamespace)}).Validate(); err != nil {
		return Invalidf("%v", err)
	}
	return checkLabels("labels", c.Labels)
}

// Pod returns the pod for network policies with these CNI_ARGS; nil if it need not be an endpoint for them. CNI_ARGS
// override the configuration.
func (c Config) Pod(args string) (*policy.Pod, error) {
	pod := policy.Pod{Namespace: c.Namespace, Labels: map[string]string{}}
	maps.Copy(pod.Labels, c.Labels)
	for pair := range strings.SplitSeq(args, ";") {
		key, value, _ := strings.Cut(pair, "=")
		var err error
		switch key {
		case argNamespace:
			pod.Namespace = value
			err = (&policy.Pod{Namespace: value}).Validate()
		case argPod:
			pod.Name = value
		case argLabels:
			err = parseLabels(pod.Labels, value)
		}
		if err != nil {
			return nil, types.NewError(types.ErrInvalidEnvironmentVariables, fmt.Sprintf("CNI_ARGS: %s: %v", key, err), "")
		}
	}
	selects := pod.Namespace != "" || len(pod.Labels) > 0
	switch asked := c.Policies == policiesOn || c.Policies != policiesOff && selects; {
	case c.TranslatesPackets() && !selects:
		return nil, nil // an endpoint anyway
	case c.TranslatesPackets() || asked && c.Services != ServicesOff:
		pod.Namespace = cmp.Or(pod.Namespace, defaultNamespace)
		return &pod, nil
	case len(pod.Labels) > 0:
		return nil, Invalidf("policies: with policies or services off, no policy selects the pod, which has labels")
	}
	return nil, nil
}

// KubernetesPod returns the Kubernetes Pod in CNI_ARGS; missing parts are empty.
func KubernetesPod(args string) (namespace, name, uid string) {
	all := map[string]string{}
	for pair := range strings.SplitSeq(args, ";") {
		key, value, _ := strings.Cut(pair, "=")
		all[key] = value
	}
	return all[argNamespace], all[argPod], all[argUID]
}

// parseLabels adds labels in the form app:web,tier:db, or app=web.
func parseLabels(labels map[string]string, text string) error {
	more := map[string]string{}
	for label := range strings.SplitSeq(text, ",") {
		i := strings.IndexAny(label, ":=")
		if i < 0 {
			return fmt.Errorf("want labels such as app:web,tier:db, got %q", label)
		}
		more[label[:i]] = label[i+1:]
	}
	maps.Copy(labels, more)
	return checkLabels(argLabels, labels)
}

func checkLabels(key string, labels map[string]string) error {
	if len(labels) > maxLabels {
		return Invalidf("%s: %d of them, at most %d", key, len(labels), maxLabels)
	}
	if err := (&policy.Pod{Namespace: defaultNamespace, Labels: labels}).Validate(); err != nil {
		return Invalidf("%s: %v", key, err)
	}
	return nil
}
