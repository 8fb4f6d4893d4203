// SPDX-License-Identifier: Apache-2.0

package netconf

import (
	"errors"
	"reflect"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/types"

	"mustang/internal/policy"
	"mustang/internal/testkit"
)

// TestPod describes pods for policies by configuration, arguments and CNI_ARGS.
func TestPod(t *testing.T) {
	const kubernetes = "IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;K8S_POD_NAME=web-0;K8S_POD_INFRA_CONTAINER_ID=x"
	network := `,"namespace":"all","labels":{"app":"web","tier":"x"}`
	attachment := `,"args":{"ips":7,"cni":{"ips":[],"labels":[{"key":"tier","value":"y"},{"key":"env","value":"z"}]}}`
	pod := func(namespace, name string, labels ...string) *policy.Pod {
		p := &policy.Pod{Namespace: namespace, Name: name, Labels: map[string]string{}}
		for i := 0; i < len(labels); i += 2 {
			p.Labels[labels[i]] = labels[i+1]
		}
		return p
	}
	for _, c := range []struct {
		config, args string
		want         *policy.Pod
	}{
		{"", "", nil},
		{"", "IgnoreUnknown=1;A=b", nil},
		{"", "K8S_POD_NAME=web-0", nil},
		{"", kubernetes, pod("shop", "web-0")},
		{`,"policies":"off"`, kubernetes, nil},
		{`,"services":"off"`, kubernetes, nil},
		{`,"policies":"off","services":"tc"`, kubernetes, pod("shop", "web-0")}, // an endpoint anyway
		{`,"services":"tc"`, "", nil},
		{`,"policies":"on"`, "", pod("default", "")},
		{`,"policies":"agent"`, "", nil},
		{`,"policies":"agent"`, kubernetes, pod("shop", "web-0")},
		{"", "LABELS=app:web", pod("default", "", "app", "web")},
		{"", kubernetes + ";LABELS=app=web,example.org/tier:db,empty:", pod("shop", "web-0", "app", "web", "example.org/tier",
			"db", "empty", "")},
		{network, "", pod("all", "", "app", "web", "tier", "x")},
		{network + attachment, "", pod("all", "", "app", "web", "tier", "y", "env", "z")},
		{network + attachment, kubernetes + ";LABELS=tier:w", pod("shop", "web-0", "app", "web", "tier", "w", "env", "z")},
	} {
		config := testkit.Must(Parse([]byte(withIPAM(c.config))))(t)
		got, err := config.Pod(c.args)
		testkit.Check(t, err == nil && reflect.DeepEqual(got, c.want),
			"%s with %s: got %+v, %v, want %+v", c.config, c.args, got, err, c.want)
	}
}

// TestPodErrors refuses pods that no policy could select, or that only seem selectable.
func TestPodErrors(t *testing.T) {
	for _, c := range []struct {
		config, args string
		code         uint
		text         string
	}{
		{"", "K8S_POD_NAMESPACE=Shop", types.ErrInvalidEnvironmentVariables, `K8S_POD_NAMESPACE: namespace "Shop"`},
		{"", "K8S_POD_NAMESPACE=", types.ErrInvalidEnvironmentVariables, `K8S_POD_NAMESPACE: namespace ""`},
		{"", "LABELS=app", types.ErrInvalidEnvironmentVariables, `"app"`},
		{"", "LABELS=", types.ErrInvalidEnvironmentVariables, `LABELS`},
		{"", "LABELS=app:we b", types.ErrInvalidEnvironmentVariables, `"we b"`},
		{"", "LABELS=" + strings.Repeat("a", 64) + ":b", types.ErrInvalidEnvironmentVariables, "aaa"},
		{`,"services":"off"`, "LABELS=app:web", types.ErrInvalidNetworkConfig, "services off"},
		{`,"policies":"off"`, "LABELS=app:web", types.ErrInvalidNetworkConfig, "policies"},
		{`,"policies":"off","args":{"cni":{"labels":[{"key":"app","value":"web"}]}}`, "", types.ErrInvalidNetworkConfig,
			"policies"},
	} {
		config := testkit.Must(Parse([]byte(withIPAM(c.config))))(t)
		_, err := config.Pod(c.args)
		var coded *types.Error
		testkit.Check(t, errors.As(err, &coded) && coded.Code == c.code && strings.Contains(coded.Msg, c.text),
			"%s with %s: %v, want code %d and %q", c.config, c.args, err, c.code, c.text)
	}
}
