// SPDX-License-Identifier: Apache-2.0

package cni

import (
	"context"
	"errors"
	"io"
	"strings"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"golang.org/x/sys/unix"

	"mustang/internal/datapath/objects"
	"mustang/internal/ipam"
	"mustang/internal/podlink"
)

// codeNotAvailable is the code of a plugin that cannot serve ADD (CNI spec 1.1.0, STATUS). The library exports it
// since version 1.3.1, whose package invoke has dependencies that start slowly.
const codeNotAvailable = 50

// Failure is the result of a failed verb (CNI spec 1.1.0, section 5). The error type of
// the library lacks the version.
type Failure struct {
	CNIVersion string `json:"cniVersion"`
	*types.Error
}

// WriteResult writes a result of ADD in a version of the specification.
func WriteResult(w io.Writer, result *types100.Result, version string) error {
	out, err := result.GetAsVersion(version)
	if err != nil {
		return err
	}
	return out.PrintTo(w)
}

// Coded converts an error to one with a code of the CNI specification and a text of one line.
func Coded(err error) *types.Error {
	var coded *types.Error
	if errors.As(err, &coded) {
		return types.NewError(coded.Code, oneLine(err), coded.Details)
	}
	return types.NewError(code(err), oneLine(err), "")
}

func code(err error) uint {
	var (
		full        *ipam.FullError
		tooOld      *objects.UnsupportedError
		unsupported *podlink.UnsupportedError
	)
	switch {
	case errors.As(err, &full), errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return types.ErrTryAgainLater
	case errors.Is(err, objects.ErrNoBPFFS), errors.As(err, &tooOld), errors.As(err, &unsupported):
		return codeNotAvailable
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EROFS), errors.Is(err, unix.EIO), errors.Is(err, unix.EDQUOT):
		return types.ErrIOFailure
	}
	return types.ErrInternal
}

// oneLine replaces the line breaks of joined errors.
func oneLine(err error) string { return strings.ReplaceAll(err.Error(), "\n", "; ") }
