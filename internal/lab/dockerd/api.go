// SPDX-License-Identifier: Apache-2.0

package dockerd

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
)

// api is a client of Docker's Engine API
// (https://docs.docker.com/reference/api/engine/) on a unix socket.
type api struct{ client *http.Client }

func newAPI(socket string) api {
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		var dialer net.Dialer
		return dialer.DialContext(ctx, "unix", socket)
	}
	// No connection outlives its request.
	return api{&http.Client{Transport: &http.Transport{DialContext: dial, DisableKeepAlives: true}}}
}

// call sends a request and decodes the answer into out unless out is nil. A body is
// an io.Reader with a tar archive, or anything else to send as JSON; nil sends none.
func (a api) call(ctx context.Context, request string, body, out any) error {
	answer, err := a.send(ctx, request, body)
	if err != nil {
		return fmt.Errorf("dockerd: %s: %w", request, err)
	}
	if out == nil {
		return nil
	}
	if err := json.Unmarshal(answer, out); err != nil {
		return fmt.Errorf("dockerd: %s: %w", request, err)
	}
	return nil
}

func (a api) send(ctx context.Context, request string, body any) ([]byte, error) {
	method, path, _ := strings.Cut(request, " ")
	kind := "application/x-tar"
	reader, ok := body.(io.Reader)
	if !ok && body != nil {
		data, err := json.Marshal(body)
		if err != nil {
			return nil, err
		}
		reader, kind = bytes.NewReader(data), "application/json"
	}
	r, err := http.NewRequestWithContext(ctx, method, "http://docker"+path, reader)
	if err != nil {
		return nil, err
	}
	r.Header.Set("Content-Type", kind)
	response, err := a.client.Do(r)
	if err != nil {
		var outer *url.Error // repeats the request
		if errors.As(err, &outer) {
			err = outer.Err
		}
		return nil, err
	}
	defer response.Body.Close()
	answer, err := io.ReadAll(response.Body)
	if err != nil {
		return nil, err
	}
	if response.StatusCode >= http.StatusBadRequest {
		var failure struct{ Message string }
		if json.Unmarshal(answer, &failure) != nil || failure.Message == "" {
			failure.Message = response.Status
		}
		return nil, errors.New(failure.Message)
	}
	return answer, nil
}

// checkVersion returns an error if dockerd is too old.
func (a api) checkVersion(ctx context.Context) error {
	var version struct{ Version, APIVersion string }
	if err := a.call(ctx, "GET /version", nil, &version); err != nil {
		return err
	}
	if older(version.APIVersion, oldestAPI) {
		return fmt.Errorf("dockerd is version %s (API %s), which is too old: want 20.10 (API %s) or later (Debian package %s)",
			version.Version, version.APIVersion, oldestAPI, debianPackage)
	}
	return nil
}

// older reports whether version a of the API, such as 1.9, is before version b.
func older(a, b string) bool {
	number := func(version string) (major, minor int) {
		first, second, _ := strings.Cut(version, ".")
		major, _ = strconv.Atoi(first)
		minor, _ = strconv.Atoi(second)
		return major, minor
	}
	aMajor, aMinor := number(a)
	bMajor, bMinor := number(b)
	return aMajor < bMajor || aMajor == bMajor && aMinor < bMinor
}
