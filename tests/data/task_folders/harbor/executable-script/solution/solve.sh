#!/bin/bash
set -e
mkdir -p /app/bin
cat > /app/bin/sumup <<'END'
#!/bin/bash
total=0
for one in "$@"; do total=$((total + one)); done
echo $total
END
chmod +x /app/bin/sumup
