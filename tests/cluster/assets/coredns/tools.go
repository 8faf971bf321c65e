//go:build tools

// Package tools names the program that this module is for, so that go.mod and go.sum keep what it needs.
package tools

import (
	_ "github.com/coredns/coredns"
)
