# Creates a new, minimal Debian, and runs commands in it. scripts/maintain/bare_debian and scripts/maintain/fresh_scripts
# source this file in the checkout. Both use the options --release and --share-cache, which they describe.

name=$(basename "$0")
own_release=$(. /etc/os-release && echo "${VERSION_CODENAME:-}") || true
release=$own_release
share_cache=false
say() { printf '%s: %s\n' "$name" "$*"; }
fail() { printf '%s: error: %s\n' "$name" "$*" >&2; exit 1; }

# Runs the script again in new namespaces, and sets `root` and `work` there. Their processes and mounts end with the
# inner call; the outer call removes the files. Arguments: those of the script.
enter_namespaces() {
  [ "$(id -u)" -eq 0 ] || fail "chroot needs root; run the script as root or with sudo"
  if [ -n "${LINKBOY_BARE_WORK:-}" ]; then
    work=$LINKBOY_BARE_WORK
    root=$work/root
    return
  fi
  work=$(mktemp -d "${TMPDIR:-/var/tmp}/linkboy-bare.XXXXXX")
  LINKBOY_BARE_WORK=$work unshare --mount --pid --fork --kill-child -- "scripts/maintain/$name" "$@" &
  inner=$!
  trap '{ kill -KILL "$inner" && sleep 1; } 2>/dev/null || true; rm -rf --one-file-system "$work"' EXIT
  wait "$inner"
  exit
}

# Runs a command in the root, with this environment's settings for pip, TLS and proxies.
mapfile -t settings < <(env | grep -E \
  '^(PIP_[A-Z_]*|SSL_CERT_[A-Z]*|(REQUESTS|CURL)_CA_BUNDLE|(HTTPS?|NO|ALL)_PROXY|(https?|no|all)_proxy)=')
inside() {
  timeout --kill-after=60 "${LINKBOY_BARE_TIMEOUT:-7200}" chroot "$root" env -i "${settings[@]}" \
    HOME=/root TERM=dumb PATH=/usr/sbin:/usr/bin:/sbin:/bin "$@" </dev/null
}

# Creates the root of Debian $release with the tracked files of this checkout in /linkboy, and this machine's
# configuration of apt, pip, certificates and proxies.
create_root() {
  say "create a root of Debian $release in $root"
  if ! command -v mmdebstrap >/dev/null || [ "$release" != "$own_release" ]; then
    say "install the Debian packages mmdebstrap and debian-archive-keyring"  # older versions lack the newer keys
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends mmdebstrap \
      debian-archive-keyring >/dev/null
  fi
  local file sources=() apt_options=()
  shopt -s nullglob
  for file in /etc/apt/sources.list /etc/apt/sources.list.d/*.{list,sources}; do
    if grep -q '^[^#]' "$file" 2>/dev/null; then
      sources+=("$work/$(basename "$file")")
      sed "/^[^#]/s/\b$own_release\b/$release/g" "$file" >"${sources[-1]}"  # also CODENAME-updates and others
    fi
  done
  for file in /etc/apt/apt.conf /etc/apt/apt.conf.d/*; do
    # Hooks call programs of this machine.
    if [ -f "$file" ] && ! grep -q Invoke "$file"; then apt_options+=(--aptopt="$file"); fi
  done
  mmdebstrap --quiet --variant=minbase --include=ca-certificates "${apt_options[@]}" \
    "$release" "$root" "${sources[@]}" || fail "mmdebstrap could not create a root of Debian $release"
  for file in /etc/apt/keyrings /etc/apt/trusted.gpg.d /etc/pip.conf ~/.config/pip ~/.pip /etc/resolv.conf \
    /etc/hosts /usr/local/share/ca-certificates; do
    if [ -e "$file" ]; then (cd / && cp --recursive --parents --dereference "${file#/}" "$root"); fi
  done
  inside update-ca-certificates >/dev/null
  mount --bind "$root" "$root"  # unshare in the root needs a mount point
  mount --rbind /dev "$root/dev"
  mount -t proc proc "$root/proc"
  for program in cc c++ python3 nvcc cmake; do
    ! inside sh -c "command -v $program" || fail "the root is not minimal: it contains $program"
  done
  if $share_cache; then
    echo force-unsafe-io >"$root/etc/dpkg/dpkg.cfg.d/unsafe-io"  # on a slow disk, syncs take minutes
    local cache=${XDG_CACHE_HOME:-$HOME/.cache}/linkboy-roots/$release
    mkdir -p "$cache" "$root/root/.cache"
    mount --bind "$cache" "$root/root/.cache"
    say "the root shares $cache, so its times are not those of a first set-up"
  fi
  mkdir "$root/linkboy"
  git ls-files -z | tar --null --files-from=- --create | tar --extract --directory="$root/linkboy"
  git -C "$root/linkboy" init --quiet
  git -C "$root/linkboy" add --all
}
